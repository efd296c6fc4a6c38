// The member's half of the protocol [GRAMMAR 8]: when to join, what to start, stop and report.
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { bootMs } from "./clock.js";
import { digestOf } from "./keys.js";
import { nameOf, namesOf, ROLES, writeSets } from "./tasks.js";
import { bytesOf, write } from "./wire.js";

const GATHER_MS = 50; // from the first stopped task to the report
const FAILURES_MS = 60_000; // work that ends by itself later than this after the join has not failed again and again
const FLUSH_MS = 10_000; // how long Kafka may take for the last events

export class Worker {
  session = 0n; // incarnation; 0 = not joining
  former = 0n; // the session that was left and is followed by another one at joinAtMs; 0 = none
  newest = null; // the assignment in force; null = not a member
  coordinator = -1; // the highest coordinator epoch seen
  held = new Map(); // "role task" -> { key, task, role, stopping, ready, stop, done }
  leaseMs = 0; // when the lease ends; it counts from the older of the next two
  heardMs = 0; // when the newest acknowledged event was sent
  readMs = 0; // everything written before it has been read
  firstMs = 0; // of this session's first join
  formerMs = 0; // the longest session timeout that may count, until an event since the report proves the session
  toldMs = 0; // when a report on a shorter timeout was sent; 0 = it was not
  joinsMs = []; // when acknowledged joins were sent and acknowledged, until one is answered
  sentMs = 0;
  joinAtMs = 0;
  attempts = 0;
  failures = 0; // sessions that work ended by itself, one soon after the other
  beating = false; // a heartbeat is in flight
  reportMs = 0; // when to report what has stopped; 0 = nothing has
  leaving = false;
  sending = Promise.resolve();

  // work(task, role, given, signal, mayRun) is the work; write(value) writes an event; ended(inTime) is
  // called when the member has left, or Kafka has not taken the leave in time.
  constructor(member, work, write, ended) { Object.assign(this, { member, work, write, ended }); }

  // ---- records

  hear(a) {
    if (this.fenced()) return;
    const mine = a.incarnation === this.session || (a.fault && a.incarnation === 0n);
    if (!mine || a.coordinator_epoch < this.coordinator) return;
    this.coordinator = a.coordinator_epoch;
    if (a.fault) return this.hearFault(a);
    if (!this.leaving && (this.newest === null || a.revision > this.newest.revision)) { // leaving: all stops anyway
      if (this.newest === null) this.admitted(a);
      else this.retime(a);
      this.newest = a;
      this.renew();
      if (this.fenced() || this.settle()) return;
    }
    if (a.report || this.mustTell()) this.report();
  }

  hearFault({ fault, message }) {
    console.error(`${fault}: ${message}`);
    const member = this.newest !== null;
    if (["MEMBER_ID_IN_USE", "UNRELEASED_INSTANCE_ID", "GROUP_MAX_SIZE_REACHED"].includes(fault)) return; // asks again
    const lost = ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"].includes(fault);
    if (member && fault !== "FENCED_INSTANCE_ID") this.lose(fault);
    else if (!lost) this.stopAll().then(() => process.exit(1));
  }

  letGo() { if (this.newest) this.lose("let go by the coordinator"); }
  caughtUp(atMs) {
    this.readMs = Math.max(this.readMs, atMs);
    this.renew();
  }

  // ---- the lease: the session less 1 % for clocks that drift and a tenth, at most 3 s, for stopping

  // The answer proves that one join is in the log, perhaps the first: a process that was suspended
  // and asks again may read the answer to an earlier join.
  admitted(a) {
    [this.heardMs, this.formerMs, this.toldMs] = [this.firstMs, a.session_timeout_ms, 0];
    for (const [sentMs, acknowledgedMs] of this.joinsMs) this.count(sentMs, acknowledgedMs);
    this.joinsMs = [];
  }

  // An acknowledgement is a sign of life if it comes before the session of the event counted so far
  // could end: later, the coordinator may have given the tasks away already.
  count(sentMs, acknowledgedMs) {
    if (acknowledgedMs < this.endsAt(this.heardMs)) this.heardMs = Math.max(this.heardMs, sentMs);
  }

  // The coordinator counts a longer session timeout at once, and a shorter one from the member's report on.
  // What was sent before had the rhythm of the longer one. If the timeout changes again before an event since
  // the report proves the session, the first report counts: the coordinator may have counted from then on.
  retime({ session_timeout_ms: ms }) {
    const proved = this.toldMs > 0 && this.sinceMs() >= this.toldMs;
    const longest = proved ? this.newest.session_timeout_ms : this.formerMs;
    if (proved || ms >= longest) this.toldMs = 0;
    this.formerMs = Math.max(ms, longest);
  }

  mustTell() { return this.formerMs > this.newest.session_timeout_ms && this.toldMs === 0; }

  // Until when the session lives for certain that is proved up to `sinceMs`.
  endsAt(sinceMs) {
    const former = sinceMs + 0.99 * this.formerMs;
    if (this.toldMs === 0) return former;
    return Math.min(former, Math.max(sinceMs, this.toldMs) + 0.99 * this.newest.session_timeout_ms);
  }

  sinceMs() { return Math.min(this.heardMs, this.readMs); }

  renew() {
    if (this.newest) this.leaseMs = this.endsAt(this.sinceMs()) - Math.min(3000, this.newest.session_timeout_ms / 10);
  }

  fenced() {
    const over = this.newest !== null && bootMs() >= this.leaseMs;
    if (over) this.lose("the lease ran out");
    return over;
  }

  // Work has ended by itself. If it does so again and again, the joins wait, longer each time, while the tasks wait
  // for the member. Otherwise it would leave and join as fast as the coordinator answers.
  failed(held) {
    if (bootMs() >= this.firstMs + FAILURES_MS) this.failures = 0;
    const pauseMs = this.failures ? Math.min(500 * 2 ** this.failures, 30_000) : 0;
    this.failures++;
    this.lose(`${nameOf(held.task)} ended by itself`, pauseMs);
  }

  lose(why, pauseMs = 0) { // stop every task, then join under another incarnation
    console.error(`lost everything: ${why}`);
    const incarnation = this.session;
    Object.assign(this, { newest: null, session: 0n, leaseMs: 0, attempts: 0, beating: false, reportMs: 0 });
    this.stopAll().then(() => {
      this.send("Leave", { incarnation, temporary: !this.leaving });
      if (this.leaving) return this.left();
      [this.former, this.joinAtMs] = [incarnation, bootMs() + pauseMs];
      this.tick();
    });
  }

  // ---- events

  begin() {
    this.former = 0n;
    this.session = randomBytes(8).readBigUInt64LE() >> 1n || 1n;
    this.firstMs = this.readMs = bootMs(); // nothing is written to a session before its first join
    this.joinsMs = [];
    this.join();
  }

  join() { // holds nothing; can keep a task until a learner has caught up with it
    this.joinAtMs = bootMs() + Math.min(1000 * 2 ** this.attempts++, 5000);
    this.send("Join", { incarnation: this.session, capacity: 1, make_before_break: true });
  }

  tick() {
    if (this.fenced()) return;
    const now = bootMs();
    if (this.newest === null) {
      if (this.leaving || now < this.joinAtMs) return;
      if (this.former) this.begin();
      else if (this.session) this.join();
    } else if (this.reportMs && now >= this.reportMs) this.report();
    else if (!this.beating && now >= this.sentMs + this.newest.heartbeat_interval_ms) {
      this.beating = true;
      const digest = [...this.held.values()].reduce((sum, h) =>
        sum + digestOf(h.task, ROLES.indexOf(h.role) + (this.givenUp(h) ? 5 : 1)), 0n);
      this.send("Heartbeat", { epoch: this.newest.epoch, digest: BigInt.asUintN(64, digest) });
    }
  }

  report() {
    this.reportMs = 0;
    if (this.mustTell()) {
      this.toldMs = bootMs();
      this.renew();
    }
    const tasks = (fit) => [...this.held.values()].filter(fit).map((h) => h.task);
    const [units, [active, standby, learner, ready, releasing]] = writeSets(
      ...ROLES.map((role) => tasks((h) => h.role === role)), tasks((h) => h.ready), tasks((h) => this.givenUp(h)));
    const { epoch, revision } = this.newest;
    const holding = { active, standby, learner, ready, releasing, ...namesOf(units) };
    holding.extras.unshift({ name: "coordinator_epoch", value: bytesOf("u64", BigInt(this.coordinator)) });
    this.send("Report", { incarnation: this.session, epoch, revision, ...holding });
  }

  send(schema, fields) { // one after the other: the order matters
    const [session, atMs] = [this.session, (this.sentMs = bootMs())];
    const value = write(schema, { member: this.member, ...fields });
    const sent = this.sending.then(() => this.write(value)).then(() => true, (error) =>
      console.error(`not written: ${error.message}`));
    this.sending = sent.then((ok) => {
      if (session !== this.session) return;
      if (schema === "Heartbeat") this.beating = false;
      // Another report takes the place of the next heartbeat.
      if (!ok && schema === "Report" && this.newest) this.reportMs = bootMs() + this.newest.heartbeat_interval_ms;
      if (!ok || schema === "Leave") return;
      if (this.newest) this.count(atMs, bootMs());
      else this.joinsMs.push([atMs, bootMs()]);
      this.renew();
    });
  }

  // ---- tasks

  wanted() {
    return new Map(ROLES.flatMap((role) =>
      this.newest[role].map((task) => [`${role} ${nameOf(task)}`, { task, role }])));
  }

  givenUp(held) { return held.stopping && !this.wanted().has(held.key); }

  settle() { // returns whether it has reported
    const [wanted, names] = [this.wanted(), new Set()];
    const roles = new Map([...wanted.values()].map(({ task, role }) => [nameOf(task), role]));
    for (const held of [...this.held.values()]) {
      const role = roles.get(nameOf(held.task));
      names.add(nameOf(held.task));
      if (role === held.role || held.stopping) continue;
      if (role && held.role !== "active") this.change(held, role);
      else this.stop(held);
    }
    let copies = false;
    for (const { task, role } of wanted.values())
      if (!names.has(nameOf(task))) { // an active that becomes a copy must stop first
        this.start(task, role);
        copies ||= role !== "active";
      }
    // Copies are ready at once: there is nothing to restore.
    const due = copies || (this.reportMs > 0 && ![...this.held.values()].some((h) => h.stopping));
    if (due) this.report();
    return due;
  }

  // A copy has another role: its state stays, and there is nothing to report.
  change(before, role) {
    this.held.delete(before.key);
    before.stop();
    this.start(before.task, role, before.done);
  }

  start(task, role, before = Promise.resolve()) { // when its work in another role has ended
    const [given, ending, key] = [this.newest, new AbortController(), `${role} ${nameOf(task)}`];
    const held = { key, task, role, ready: role !== "active", stopping: false, stop: () => ending.abort() };
    this.held.set(key, held);
    const mayRun = () => given.incarnation === this.session && bootMs() < this.leaseMs;
    held.done = before.then(() => {
      this.say("start", held, given);
      return this.work(task, role, given, ending.signal, mayRun);
    }).catch((error) => { // the task has stopped; what is asked to stop may say so with an AbortError
      if (!ending.signal.aborted || error?.name !== "AbortError") console.error(`${nameOf(task)} failed:`, error);
    }).finally(() => {
      this.say("stop", held, given);
      if (this.held.get(key) !== held || ending.signal.aborted || this.fenced()) return; // work may notice that first
      this.failed(held);
    });
  }

  stop(held) {
    Object.assign(held, { stopping: true, ready: false }).stop();
    held.done.then(() => {
      if (this.held.get(held.key) !== held) return; // lost meanwhile
      if (this.fenced()) return;
      // While the member leaves, others wait for what a record has revoked; the leave releases the rest.
      if (!this.leaving || this.givenUp(held)) this.reportMs ||= bootMs() + GATHER_MS;
      this.held.delete(held.key);
      if (this.leaving) this.leave();
      else this.settle(); // a task may have waited until it stopped in its other role
    });
  }

  async stopAll() {
    const all = [...this.held.values()];
    this.held.clear();
    for (const held of all) held.stop();
    await Promise.all(all.map((held) => held.done));
  }

  leave() { // when every task has stopped
    this.leaving = true;
    for (const held of this.held.values()) if (!held.stopping) this.stop(held);
    const incarnation = this.session || this.former;
    if (this.held.size || !incarnation) return;
    this.send("Leave", { incarnation });
    [this.newest, this.session, this.former] = [null, 0n, 0n];
    this.left();
  }

  left() { // the last events are written, unless Kafka is away
    const late = sleep(FLUSH_MS, false, { ref: false });
    Promise.race([this.sending.then(() => true), late]).then(this.ended);
  }

  say(event, { task, role }, { incarnation, generation, epoch }) {
    const line = { event, task: nameOf(task), role, member: this.member, incarnation: String(incarnation) };
    console.log(JSON.stringify({ ...line, generation, epoch, at_ms: Date.now(), boottime_ms: bootMs() }));
  }
}
