// The page of one group: live, or as it was at a moment that the timeline names.
"use strict";

(() => {
  const { by, el, fill, ask, url } = muster;
  const main = by("group-page");
  const key = { p: main.dataset.prefix, g: main.dataset.group };
  const query = new URLSearchParams(location.search);
  const live = new muster.GroupState(); // the newest
  let shown = live; // what the page shows: the newest, an older moment, or a plan
  let notes = []; // of the newest
  let number = null; // of the moment that is shown; null = the newest
  let plan = null;
  let panel = { kind: "none" };
  // Answers may come in another order than their requests: an older one never replaces a newer one.
  let wanted = 0; // the newest request for a moment
  let asked = 0, drawn = 0; // the newest request for the panel, and the one that it shows
  let opening = 0; // the newest address that was opened
  const page = { bytes: 0, messages: 0, delays: [] }; // for measurements
  muster.page = page;

  const map = new muster.OwnershipMap(by("map"), by("tooltip"), (cell) => pick(cell));
  muster.theMap = map;
  const timeline = new muster.Timeline({
    canvas: by("timeline"), slider: by("slider"), live: by("go-live"),
    back: by("back"), forward: by("forward"), onGo: (to) => go(to),
  });

  // ---------------------------------------------------------------- what is shown

  const render = () => {
    const { head } = shown;
    if (head.generation === undefined) return;
    const level = head.quarantined ? "bad" : muster.stateLevel(head.state);
    fill(by("state"),
      muster.badge(head.quarantined ? `${head.state}, quarantined` : head.state, level),
      muster.kindBadge(head.kind));
    by("generation").textContent = `generation ${head.generation}`;
    by("cause").textContent = head.cause || "no cause yet";
    by("counts").textContent = [
      muster.count(shown.members.size, "member"), muster.count(shown.size, "task"),
      head.kind === "shadowed" ? "placed by Kafka" : head.assignor,
    ].join(" · ");
    const banner = by("banner");
    const isOld = number !== null && !plan;
    banner.hidden = !isOld && !plan;
    by("banner-text").textContent = plan
      ? "A plan: nothing is changed. The arrows show what would move."
      : isOld ? `As it was at ${muster.when(head.at_ms)} UTC, in generation ${head.generation}.` : "";
    map.show(shown);
    if (by("as-table").open) fill(by("table-holder"), muster.mapTable(shown));
    timeline.show(number);
    renderRounds();
  };

  const renderNotes = (list) => {
    const isOpen = by("notes").querySelector("details")?.open ?? false;
    fill(by("notes"), muster.notesList(list, (task) => openTask(task), isOpen));
    by("notes").hidden = !list.length || plan !== null;
  };

  const renderRounds = () => {
    const rounds = [...timeline.rounds.values()].sort((a, b) => a.generation - b.generation);
    const scrolled = by("rounds").firstElementChild?.scrollTop ?? 0;
    fill(by("rounds"), muster.roundsTable(rounds, shown.head.generation, openGeneration));
    by("rounds").firstElementChild.scrollTop = scrolled;
  };

  /** Remember in the address what is open, so that it can be sent to others. */
  const remember = (push = true) => {
    const open = {
      ...(key.p === main.dataset.first ? {} : { p: key.p }), g: key.g,
      at: number === null ? "" : shown.head.at_ms,
      task: panel.kind === "task" ? panel.task : "",
      member: panel.kind === "member" ? panel.name : "",
      gen: panel.kind === "generation" ? panel.generation : "",
    };
    const address = url("/group", open);
    if (address === location.pathname + location.search) return;
    history[push ? "pushState" : "replaceState"](null, "", address);
  };

  // ---------------------------------------------------------------- time

  /** Show a moment; null = live. */
  const go = async (to, { keep = false } = {}) => {
    plan = null;
    number = to;
    const request = ++wanted;
    if (to === null) {
      shown = live;
      renderNotes(notes);
      render();
    } else {
      timeline.show(to);
      try {
        const frame = await ask(url("/api/frame", { ...key, number: to }));
        if (request !== wanted) return;
        shown = new muster.GroupState().apply(frame);
        renderNotes(frame.notes);
        render();
        muster.say(`As it was in generation ${shown.head.generation}: ${shown.head.cause}`);
      } catch (error) {
        if (request !== wanted) return;
        fail(error);
      }
    }
    if (!keep) remember(false);
    refreshPanel();
  };

  const goAt = async (atMs) => {
    const request = ++wanted;
    let frame;
    try {
      frame = await ask(url("/api/frame", { ...key, at: atMs }));
    } catch (error) {
      if (request === wanted) fail(error);
      return;
    }
    if (request === wanted) await go(frame.head.number, { keep: true });
  };

  // ---------------------------------------------------------------- panels

  const { tab } = muster;

  const pick = (cell) => {
    if (cell.kind === "member") {
      const member = shown.members.get(cell.slot);
      if (member) openMember(member.id);
    } else openTask(shown.name(cell.task));
  };

  const openTask = async (task, push = true) => {
    panel = { kind: "task", task };
    fill(outcome);
    map.choose({ kind: "task", task: shown.find(task) });
    tab("why");
    if (push) remember();
    await refreshPanel();
  };

  const openMember = (name, push = true) => {
    panel = { kind: "member", name };
    fill(outcome);
    tab("why");
    if (push) remember();
    refreshPanel();
  };

  const openGeneration = async (generation, push = true) => {
    panel = { kind: "generation", generation };
    fill(outcome);
    map.choose(null);
    tab("why");
    timeline.goto(generation);
    if (push) remember();
    await refreshPanel();
  };

  const refreshPanel = async () => {
    const { kind } = panel, opened = panel, at = number, holder = by("why");
    const moment = at === null ? {} : { number: at };
    const request = ++asked;
    const isNewest = () => opened === panel && at === number && request > drawn;
    try {
      let content = null;
      if (kind === "task") {
        const why = await ask(url("/api/why", { ...key, task: panel.task, ...moment }));
        content = muster.whyPanel(why, { onGeneration: openGeneration });
      } else if (kind === "generation") {
        const round = await ask(
          url("/api/generation", { ...key, generation: panel.generation }));
        content = muster.generationPanel(round, { onTask: openTask });
      } else if (kind === "member") {
        // Slots are given out again, so the id says which member it is.
        const member = shown.member(panel.name);
        map.choose(member ? { kind: "member", slot: member.slot } : null);
        content = muster.memberPanel(shown, panel.name, {
          onTask: openTask, actions: muster.memberActions?.(panel.name) ?? null,
        });
      }
      if (!content || !isNewest()) return;
      fill(holder, content);
    } catch (error) {
      if (!isNewest()) return;
      fill(holder, el("p", { class: "note bad" }, error.message));
    }
    drawn = request;
  };

  /** What became of something that was written; news of the group leave it there. */
  const outcome = el("div", { id: "why-outcome", "aria-live": "polite" });
  by("why").before(outcome);

  const fail = (error) => {
    by("banner").hidden = false;
    by("banner-text").textContent = error.message;
  };

  // ---------------------------------------------------------------- news

  const receive = (change, bytes) => {
    page.bytes += bytes;
    page.messages += 1;
    const status = receive.status ??= {};
    for (const name of ["caught_up", "fault", "skipped", "gone"]) {
      if (name in change) status[name] = change[name];
    }
    muster.pulse(true, status);
    by("missing").hidden = !(status.gone && status.caught_up);
    if (status.gone) return;
    if (change.whole) timeline.clear();
    const isNews = change.whole || change.head || change.tasks || change.members || change.copies;
    live.apply(change);
    timeline.apply(change);
    if (change.notes) {
      notes = change.notes;
      if (number === null && !plan) renderNotes(notes);
    }
    if (isNews && change.head?.at_ms) page.delays.push(Date.now() - change.head.at_ms);
    if (isNews && number === null && !plan) {
      render();
      if (change.head?.generation) {
        muster.say(`generation ${live.head.generation}: ${live.head.cause}`);
      }
    } else if (change.rounds || change.moments) {
      timeline.show(number);
      renderRounds();
    }
    if (change.whole) start();
    if (isNews) document.dispatchEvent(new Event("muster-news"));
    if (number === null ? isNews || (change.notes && panel.kind === "task")
      : isNews && panel.kind === "member") refreshPanel();
  };

  /** After the first frame: open what the address names. */
  const start = () => {
    if (start.done) return;
    start.done = true;
    open(query);
  };

  const open = async (named) => {
    const request = ++opening;
    wanted += 1;
    if (named.get("at")) await goAt(named.get("at"));
    else if (number !== null) await go(null, { keep: true });
    if (request !== opening) return;
    if (named.get("task")) openTask(named.get("task"), false);
    else if (named.get("gen")) openGeneration(Number(named.get("gen")), false);
    else if (named.get("member")) openMember(named.get("member"), false);
  };

  addEventListener("popstate", () => open(new URLSearchParams(location.search)));
  by("banner-live").addEventListener("click", () => go(null));
  by("as-table").addEventListener("toggle", () => {
    if (by("as-table").open) fill(by("table-holder"), muster.mapTable(shown));
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input, select, textarea, [role=application], [role=tab]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft" || event.key === "[") timeline.step(-1);
    else if (event.key === "ArrowRight" || event.key === "]") timeline.step(1);
    else if (event.key === "l") go(null);
  });

  /** What other files of this page use. */
  muster.group = {
    key,
    live,
    outcome,
    openTask,
    refreshPanel,
    showPlan: (made) => {
      wanted += 1;
      plan = made;
      number = null;
      shown = new muster.GroupState().apply(made.frame);
      by("notes").hidden = true;
      render();
    },
    leavePlan: () => {
      if (plan) go(null);
    },
  };

  muster.startTheme();
  muster.startTabs();
  // Not before all scripts have run: the first message opens panels that later scripts fill.
  document.addEventListener("DOMContentLoaded", () => {
    muster.follow(url("/events/group", key), receive, (isLive) => muster.pulse(isLive, receive.status));
  });
})();
