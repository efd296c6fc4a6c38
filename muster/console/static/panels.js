// The panels beside the map: why a task is where it is, a member, a generation, a plan.
"use strict";

(() => {
  const { el, figure, span, when, ago, count, badge } = muster;
  const TASKS_SHOWN = 300, NOTES_SHOWN = 2, CHIP_CHARS = 28;

  const facts = (pairs) =>
    el("dl", { class: "facts" }, pairs.filter(Boolean).map(([term, said]) =>
      [el("dt", {}, term), el("dd", {}, said)]));

  const table = (caption, columns, rows, shown = false) =>
    el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption },
      el("table", {},
        el("caption", { class: shown ? "" : "unseen" }, caption),
        el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, rows)));

  const load = (pair) =>
    pair ? `${pair[0] === null ? "?" : figure(pair[0])} → ${figure(pair[1])}` : "";

  /** One move as a list entry: who to whom, why, and the loads before and after. */
  const moveEntry = (move, { withTask, onTask, onGeneration } = {}) => {
    const path = `${move.from ?? "no member"} → ${move.to ?? "no member"}`;
    const loads = [
      move.load_from && `${move.from}: load ${load(move.load_from)}`,
      move.load_to && `${move.to}: load ${load(move.load_to)}`,
    ].filter(Boolean);
    return el("li", { class: "move" },
      el("div", { class: "move-head" },
        withTask && el("button", { class: "link", onclick: () => onTask?.(move.task) }, move.task),
        el("span", { class: "path" }, path),
        move.role === "active" ? null : badge(move.role, "info")),
      el("p", { class: "reason" }, move.reason),
      loads.length ? el("p", { class: "muted small" }, loads.join(" · ")) : null,
      onGeneration && el("p", { class: "small" },
        el("button", { class: "link", onclick: () => onGeneration(move.generation) },
          `generation ${move.generation}`),
        ` · ${when(move.at_ms)} UTC · ${move.cause}`));
  };

  /** Why a task is where it is. */
  muster.whyPanel = (why, { onGeneration }) => [
    el("h2", {}, `Why is ${why.task} where it is?`),
    el("p", { class: "sentence", id: "why-sentence" }, why.sentence),
    facts([
      ["weight", figure(why.weight)],
      ["unit", why.unit],
      ["state", why.stateful ? "has state to restore" : "no state"],
    ]),
    el("h3", {}, "Copies"),
    why.copies.length
      ? table(`Copies of ${why.task}`, ["Member", "Role", "State", "Behind"], why.copies.map((copy) =>
        el("tr", {},
          el("th", { scope: "row" }, copy.member),
          el("td", {}, copy.role),
          el("td", {}, copy.state),
          el("td", { class: "number" }, copy.lag === null ? "–" : copy.lag.toLocaleString("en")))))
      : el("p", { class: "muted" }, "It has no copies."),
    el("h3", {}, "How it came to be there"),
    why.moves.length
      ? el("ol", { class: "moves" }, why.moves.map((move) => moveEntry(move, { onGeneration })))
      : el("p", { class: "muted" },
        "It has been there since before the oldest generation that the console keeps."),
  ];

  /** A button with a task's id; of a long one the end, which tells it from others. */
  const chip = (name, onclick) => el("button", {
    class: "chip", title: name, "aria-label": name, onclick,
  }, name.length > CHIP_CHARS ? `…${name.slice(1 - CHIP_CHARS)}` : name);

  /** A member: what it has, and what can be done with it. */
  muster.memberPanel = (state, id, { onTask, actions }) => {
    const member = state.member(id);
    if (!member) {
      return [el("h2", {}, `Member ${id}`), el("p", { class: "muted" }, "It is not in the group.")];
    }
    const holding = state.holdings().get(member.slot);
    const words = muster.memberWords(member);
    const list = (title, tasks, name) => tasks.length
      ? [el("h3", {}, `${title} (${tasks.length})`),
        el("ul", { class: "chips" }, tasks.slice(0, TASKS_SHOWN).map((each) =>
          el("li", {}, chip(name(each), () => onTask(name(each))))),
        tasks.length > TASKS_SHOWN
          ? el("li", { class: "muted" }, `and ${tasks.length - TASKS_SHOWN} more`) : null)]
      : [];
    const copies = (role) => holding.copies.filter((copy) => copy.role === role);
    return [
      el("h2", {}, `Member ${member.id}`),
      words.length ? el("p", {}, words.map((word) => badge(word, "warn"))) : null,
      facts([
        member.rack ? ["rack", member.rack] : null,
        ["capacity", figure(member.capacity)],
        ["load", figure(holding.load)],
        member.instance ? ["instance id", member.instance] : null,
        ["epoch", String(member.epoch)],
        member.joinedMs ? ["joined", ago(member.joinedMs)] : null,
      ]),
      actions,
      ...list("Active tasks", holding.actives, (task) => state.name(task)),
      ...list("On their way to it", holding.coming, (task) => state.name(task)),
      ...list("Learners", copies(muster.LEARNER), (copy) => state.name(copy.task)),
      ...list("Standbys", copies(muster.STANDBY), (copy) => state.name(copy.task)),
    ];
  };

  /** A generation with its moves. */
  muster.generationPanel = (round, { onTask }) => [
    el("h2", {}, `Generation ${round.generation}`),
    el("p", { class: "sentence" }, round.cause || "no cause recorded"),
    facts([
      ["began", `${when(round.at_ms)} UTC`],
      ["settled", round.settled_ms === null
        ? round.ended_ms === null ? "not yet" : "the next one came first"
        : `after ${span(round.settled_ms)}`],
      ["without an owner", `${figure(round.ownerless_ms / 1000)} task-seconds`],
    ]),
    el("h3", {}, `Moves (${round.moves})`),
    round.shown.length
      ? el("ol", { class: "moves" },
        round.shown.map((move) => moveEntry(move, { withTask: true, onTask })))
      : el("p", { class: "muted" }, "No task moves."),
    round.left_out ? el("p", { class: "muted" }, `and ${round.left_out} more`) : null,
  ];

  /** The list of generations, newest first. */
  muster.roundsTable = (rounds, chosen, onGeneration, most = 60) => table(
    "Generations, newest first",
    ["Generation", "Moves", "Settled in", "Ownerless"],
    rounds.slice(-most).reverse().map((round) =>
      el("tr", { class: round.generation === chosen ? "chosen" : "" },
        el("th", { scope: "row" },
          el("button", {
            class: "link",
            onclick: () => onGeneration(round.generation),
            "aria-current": round.generation === chosen ? "true" : null,
          }, String(round.generation)),
          el("span", { class: "muted small plain-weight" }, ` ${when(round.at_ms)}`),
          el("p", { class: "small plain-weight" },
            el("span", { class: `dot ${muster.causeKind(round.cause)}` }), round.cause || "–")),
        el("td", { class: "number" }, round.moves.toLocaleString("en")),
        el("td", { class: "number nowrap" }, round.settled_ms === null
          ? round.ended_ms === null ? "on its way" : "–" : span(round.settled_ms)),
        el("td", { class: "number nowrap" }, `${figure(round.ownerless_ms / 1000)} s`))));

  /** What a plan would do. */
  muster.planPanel = (plan, { onTask, onCopy }) => {
    const row = (name, before, after) =>
      el("tr", {}, el("th", { scope: "row" }, name),
        el("td", { class: "number" }, figure(before)), el("td", { class: "number" }, figure(after)));
    return [
      el("p", { class: "sentence", id: "plan-count" }, plan.count
        ? `${count(plan.count, "task or copy moves", "tasks and copies move")}.`
        : "Nothing moves."),
      ...plan.warnings.map((warning) => el("p", { class: "note warn" }, warning)),
      table("Figures before and after", ["Figure", "Now", "After"], [
        row("largest difference of load", plan.before.imbalance, plan.after.imbalance),
        row("cross-rack reads", plan.before.cross_rack, plan.after.cross_rack),
        row("actives that move", 0, plan.after.moved),
        row("tasks without an owner after it", null, plan.unassigned),
      ]),
      plan.commands.length ? el("h3", {}, "On the command line") : null,
      ...plan.commands.map((line) => el("div", { class: "command" }, el("code", {}, line),
        el("button", { class: "quiet", onclick: (event) => onCopy(line, event.target) }, "Copy"))),
      el("h3", {}, "Moves"),
      el("ol", { class: "moves" }, plan.moves.map((move) => moveEntry(move, { withTask: true, onTask }))),
      plan.left_out ? el("p", { class: "muted" }, `and ${plan.left_out} more`) : null,
    ];
  };

  /** What the group waits for. */
  muster.notesList = (notes, onTask, isOpen) => {
    const line = (note) => el("li", { class: `note ${note.level}` }, note.task
      ? el("button", { class: "link plain", onclick: () => onTask(note.task) }, note.text)
      : note.text);
    const first = notes.slice(0, NOTES_SHOWN).map(line), rest = notes.slice(NOTES_SHOWN);
    if (!rest.length) return first;
    return [...first, el("li", {}, el("details", { open: isOpen },
      el("summary", { class: "muted" }, `${rest.length} more`), el("ul", {}, rest.map(line))))];
  };

  /** The map as a table, for those who cannot see it. */
  muster.mapTable = (state) => {
    const held = state.holdings();
    const names = (tasks, name = (task) => state.name(task)) => {
      const shown = tasks.slice(0, 40).map(name).join(", ");
      return tasks.length > 40 ? `${shown} and ${tasks.length - 40} more` : shown || "–";
    };
    const members = state.sorted().slice(0, 500);
    const rows = members.map((member) => {
      const holding = held.get(member.slot);
      return el("tr", {},
        el("th", { scope: "row" }, member.id),
        el("td", {}, member.rack || "–"),
        el("td", {}, muster.memberWords(member).join(", ") || "stable"),
        el("td", {}, names(holding.actives)),
        el("td", {}, names(holding.coming)),
        el("td", {}, names(holding.copies, (copy) =>
          `${state.name(copy.task)} (${copy.role === muster.LEARNER ? "learner" : "standby"})`)));
    });
    const ownerless = held.get(-1).actives;
    if (ownerless.length) {
      rows.unshift(el("tr", {}, el("th", { scope: "row" }, "no owner"), el("td", {}, "–"),
        el("td", {}, "–"), el("td", {}, names(ownerless)), el("td", {}, "–"), el("td", {}, "–")));
    }
    return table("Members and their tasks",
      ["Member", "Rack", "State", "Active", "On their way to it", "Copies"], rows);
  };
})();
