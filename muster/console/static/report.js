// A report: a group's records in this file, applied one after the other.
"use strict";

(() => {
  const { by, el, fill } = muster;
  const report = by("report");
  if (!report) return;

  const inflate = async (text) => {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };

  const head = (state) => {
    const { head: said } = state;
    fill(by("state"), muster.badge(said.state, said.quarantined ? "bad" : muster.stateLevel(said.state)));
    by("generation").textContent = `generation ${said.generation}`;
    by("cause").textContent = said.cause || "no cause yet";
    by("counts").textContent = [
      muster.count(state.members.size, "member"), muster.count(state.size, "task"), said.assignor,
    ].join(" · ");
  };

  const asTable = (state) => {
    if (by("as-table").open) fill(by("table-holder"), muster.mapTable(state()));
  };

  // ---------------------------------------------------------------- a plan

  const showPlan = (data) => {
    const state = new muster.GroupState().apply(data.base);
    const map = new muster.OwnershipMap(by("map"), by("tooltip"), (cell) => open(cell));
    document.querySelector(".timeline-panel").hidden = true;
    const panel = () => fill(by("why"),
      muster.planPanel(data.plan, { onTask: (task) => choose(state.find(task)), onCopy: copy }));
    const choose = (task) => map.choose({ kind: "task", task });
    const open = (cell) => {
      map.choose(cell.kind === "member" ? cell : { kind: "task", task: cell.task });
      if (cell.kind !== "member") return;
      fill(by("why"), el("button", { class: "link", onclick: panel }, "← the plan"),
        muster.memberPanel(state, state.who(cell.slot), { onTask: (task) => choose(state.find(task)), actions: null }));
    };
    head(state);
    map.show(state);
    panel();
    by("as-table").addEventListener("toggle", () => asTable(() => state));
  };

  const copy = (line, button) => {
    const range = document.createRange();
    range.selectNodeContents(button.previousElementSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    navigator.clipboard?.writeText(line).catch(() => undefined);
  };

  // ---------------------------------------------------------------- a history

  const showHistory = ({ base, steps, rounds, texts }) => {
    let state = new muster.GroupState().apply(base);
    let place = 0; // of the step that `state` is at
    let panel = null;
    const told = (number) => (number < 0 ? null : texts[number]);
    const byGeneration = new Map(rounds.map((round) => [round.generation, {
      ...round,
      shown: round.shown.map(([task, role, from, to, reason, loadFrom, loadTo]) => ({
        generation: round.generation, at_ms: round.at_ms, cause: round.cause, task, role,
        from: told(from), to: told(to), reason: told(reason), load_from: loadFrom, load_to: loadTo,
      })),
    }]));
    const map = new muster.OwnershipMap(by("map"), by("tooltip"), (cell) =>
      cell.kind === "member" ? openMember(cell.slot) : openTask(state.name(cell.task)));
    const timeline = new muster.Timeline({
      canvas: by("timeline"), slider: by("slider"), live: by("go-live"),
      back: by("back"), forward: by("forward"), onGo: (to) => go(to),
    });
    timeline.apply({ moments: steps.map((step) => step.m), rounds: [...byGeneration.values()] });

    /** Show the step of a moment; null = the last. */
    const go = (number) => {
      const at = number === null
        ? steps.length - 1 : steps.findIndex((step) => step.m[0] === number);
      if (at < place) {
        state = new muster.GroupState().apply(base);
        place = 0;
      }
      while (place < at) state.apply(steps[++place].d);
      render(number);
    };

    const render = (number) => {
      head(state);
      map.show(state);
      timeline.show(number);
      const notes = (steps[place].n ?? []).map(([level, text, task]) =>
        ({ level, text: texts[text], ...(task ? { task } : {}) }));
      fill(by("notes"), muster.notesList(notes, openTask, false));
      by("notes").hidden = !notes.length;
      fill(by("rounds"), muster.roundsTable(rounds, state.head.generation, openGeneration, 2000));
      asTable(() => state);
      panel?.();
      muster.say(`generation ${state.head.generation}: ${state.head.cause}`);
    };

    const openTask = (name) => {
      const task = state.find(name);
      map.choose({ kind: "task", task });
      muster.tab("why");
      panel = () => fill(by("why"), muster.whyPanel(why(name), { onGeneration: openGeneration }));
      panel();
    };

    /** What is known about a task at this step, as `/api/why` answers it. */
    const why = (name) => {
      const task = state.find(name);
      const said = (steps[place].s ?? []).find(([waiting]) => waiting === task);
      const unit = state.unitOf(task);
      const moves = [];
      for (const round of [...rounds].reverse()) {
        if (round.generation > state.head.generation) continue;
        moves.push(...byGeneration.get(round.generation).shown.filter((move) => move.task === name));
      }
      return {
        task: name,
        sentence: said ? texts[said[1]] : `${state.describe({ kind: "active", task })}`,
        weight: state.weight(task),
        stateful: unit.stateful,
        unit: unit.name,
        copies: [...state.copies.values()].filter((copy) => copy.task === task).map((copy) => ({
          member: state.who(copy.slot), lag: copy.lag,
          role: copy.role === muster.LEARNER ? "learner" : "standby",
          state: ["kept", "restoring", "ready", "leaving"][copy.state],
        })),
        moves: moves.slice(0, 20),
      };
    };

    const openMember = (slot) => {
      const id = state.who(slot); // at another moment the slot may be another member's
      const show = () => {
        const member = state.member(id);
        map.choose(member ? { kind: "member", slot: member.slot } : null);
        fill(by("why"), muster.memberPanel(state, id, { onTask: openTask, actions: null }));
      };
      muster.tab("why");
      panel = show;
      panel();
    };

    const openGeneration = (generation) => {
      muster.tab("why");
      map.choose(null);
      panel = () => fill(by("why"),
        muster.generationPanel(byGeneration.get(generation), { onTask: openTask }));
      timeline.goto(generation);
      panel();
    };

    by("as-table").addEventListener("toggle", () => asTable(() => state));
    document.addEventListener("keydown", (event) => {
      if (event.target.closest("input, [role=application], [role=tab]")) return;
      if (event.key === "ArrowLeft") timeline.step(-1);
      else if (event.key === "ArrowRight") timeline.step(1);
    });
    go(null);
  };

  const start = async () => {
    muster.startTheme();
    muster.startTabs();
    if (typeof DecompressionStream === "undefined") {
      by("too-old").hidden = false;
      return;
    }
    const data = await inflate(by("data").textContent);
    by("made").textContent = `made ${new Date(data.made_ms).toISOString().slice(0, 19)} UTC`;
    if (report.dataset.kind === "plan") showPlan(data);
    else showHistory(data);
    document.documentElement.dataset.drawn = "yes";
  };

  start();
})();
