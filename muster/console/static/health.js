// The health page: what is wrong, how the job is, dead letters.
"use strict";

(() => {
  const { by, el, fill, ask, badge } = muster;
  const AGAIN_MS = 5000;
  let isOpen = new Set();

  const finding = (each) => el("tr", {},
    el("td", {}, badge(each.level, each.level)),
    el("td", {}, each.check),
    el("th", { scope: "row" }, each.subject),
    el("td", {}, each.what,
      each.action && each.level !== "ok" ? el("p", { class: "muted small" }, `→ ${each.action}`) : null));

  const findings = (list) => {
    const rank = { fail: 0, warn: 1, skipped: 2, ok: 3 };
    const sorted = [...list].sort((a, b) => rank[a.level] - rank[b.level]);
    return el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Findings" },
      el("table", { class: "findings" },
        el("caption", { class: "unseen" }, "Findings"),
        el("thead", {}, el("tr", {}, ["Status", "Check", "Subject", "Finding"].map((name) =>
          el("th", { scope: "col" }, name)))),
        el("tbody", {}, sorted.map(finding))));
  };

  const seconds = (value) => value === null ? "–" : value < 1
    ? `${Math.round(value * 1000)} ms` : `${muster.figure(value)} s`;

  const job = (figures) => {
    if (figures.fault) return el("p", { class: "note bad" }, figures.fault);
    if (!figures.times) {
      return el("p", { class: "muted" },
        "Start the console with --metrics http://COORDINATOR:PORT to see the job's own figures.");
    }
    return [
      el("dl", { class: "facts" }, figures.gauges.map(([said, value]) =>
        [el("dt", {}, said), el("dd", {}, value.toLocaleString("en"))])),
      el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Times" },
        el("table", { class: "times" },
          el("caption", { class: "unseen" }, "Times since the job's start"),
          el("thead", {}, el("tr", {}, ["Since the job's start", "Count", "p50", "p95", "p99"]
            .map((name, at) => el("th", { scope: "col", class: at ? "number" : "" }, name)))),
          el("tbody", {}, figures.times.map((each) => el("tr", {},
            el("th", { scope: "row" }, each.what),
            el("td", { class: "number" }, each.count.toLocaleString("en")),
            [each.p50, each.p95, each.p99].map((value) =>
              el("td", { class: "number" }, seconds(value)))))))),
    ];
  };

  const letter = (each) => {
    const key = `${each.at_ms} ${each.origin}`;
    const details = el("details", {},
      el("summary", {}, badge(each.reason, "warn"), ` ${muster.when(each.at_ms)} UTC · `,
        el("span", { class: "origin" }, each.origin), ` · ${each.message.split("\n").at(-1)}`),
      el("p", {}, each.meaning, each.action ? `. What to do: ${each.action}.` : ""),
      el("p", { class: "muted small" }, `key: ${each.key}`),
      el("pre", { tabindex: "0" }, each.event));
    details.open = isOpen.has(key);
    details.addEventListener("toggle", () => isOpen[details.open ? "add" : "delete"](key));
    return el("li", {}, details);
  };

  const render = (answer) => {
    muster.pulse(true, answer);
    const prefixes = Object.keys(answer.findings);
    const titled = (prefix, content) =>
      prefixes.length > 1 ? [el("h3", {}, prefix), content] : content;
    fill(by("findings"), prefixes.flatMap((p) => titled(p, findings(answer.findings[p]))));
    fill(by("job"), job(answer.job));
    fill(by("letters"), prefixes.flatMap((p) => titled(p, answer.letters[p].length
      ? el("ol", { class: "letters" }, answer.letters[p].map(letter))
      : el("p", { class: "muted" }, "No dead letters."))));
    by("console-facts").textContent =
      `This console keeps ${(answer.held_bytes / 1e6).toFixed(1)} MB of records` +
      (answer.skipped ? `, and skipped ${muster.count(answer.skipped, "record")} it cannot read.` : ".");
  };

  const look = async () => {
    try {
      if (!document.hidden) render(await ask("/api/health"));
    } catch (error) {
      muster.pulse(false);
    }
    setTimeout(look, AGAIN_MS);
  };

  by("run-doctor").addEventListener("click", async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    button.textContent = "Examining…";
    try {
      const answer = await ask("/api/doctor");
      fill(by("doctor"), Object.entries(answer).flatMap(([prefix, list]) =>
        [el("h3", {}, `muster doctor, ${prefix}`), findings(list)]));
    } catch (error) {
      fill(by("doctor"), el("p", { class: "note bad", role: "alert" }, error.message));
    }
    button.disabled = false;
    button.textContent = "Run muster doctor";
  });

  muster.startTheme();
  look();
})();
