import { readFileSync } from "node:fs";

// Milliseconds since boot, including time the machine was suspended: the clock of leases. The kernel
// has it in hundredths of a second; a clock that stops during suspension adds the milliseconds.
let ahead = -Infinity;
export function bootMs() {
  const upMs = 1000 * Number(readFileSync("/proc/uptime", "latin1").split(" ")[0]);
  const awakeMs = Number(process.hrtime.bigint()) / 1e6;
  ahead = Math.max(ahead, upMs - awakeMs);
  return Math.floor(awakeMs + ahead);
}

for (const start = bootMs(); bootMs() < start + 20; ); // until the hundredths advance
