// The list of groups: live, searched and sorted in the browser.
"use strict";

(() => {
  const { by, el, fill, url } = muster;
  const SHOWN_MAX = 500;
  const rows = new Map();
  const elements = new Map(); // key → [row, element]
  const several = by("fleet").dataset.several === "yes";
  const first = by("fleet").dataset.first;
  const page = { bytes: 0 };
  muster.page = page;
  let sort = { by: "wrong", down: true };
  const order = new Intl.Collator("en", { numeric: true });
  const worst = { fail: 2, warn: 1 };
  const SORTS = {
    name: (row) => row.id,
    state: (row) => row.state,
    members: (row) => row.members,
    tasks: (row) => row.tasks,
    generation: (row) => row.generation,
    at: (row) => row.at_ms,
    moved: (row) => row.moved,
    wrong: (row) => worst[row.level] ?? 0,
  };

  const compare = (a, b) => {
    const of = SORTS[sort.by];
    const [x, y] = [of(a), of(b)];
    const found = typeof x === "string" ? order.compare(x, y) : x - y;
    return (sort.down ? -found : found) || order.compare(a.id, b.id);
  };

  const line = (row) => {
    const link = url("/group", { p: row.prefix === first ? "" : row.prefix, g: row.id });
    const level = row.quarantined ? "bad" : muster.stateLevel(row.state);
    return el("tr", {},
      el("th", { scope: "row" },
        el("a", { href: link, title: row.name }, row.name),
        several && row.kind !== "shadowed" ? el("span", { class: "muted small" }, ` ${row.prefix}`) : null,
        muster.kindBadge(row.kind)),
      el("td", {}, muster.badge(row.quarantined ? "quarantined" : row.state, level)),
      el("td", { class: "number", "data-name": "members" }, row.members.toLocaleString("en")),
      el("td", { class: "number", "data-name": "tasks" }, row.tasks.toLocaleString("en")),
      el("td", { class: "number", "data-name": "generation" }, row.generation.toLocaleString("en")),
      el("td", { class: "cause" },
        el("span", { class: `dot ${muster.causeKind(row.cause)}` }), row.cause || "–",
        el("span", { class: "muted small nowrap" }, ` ${muster.ago(row.at_ms)}`)),
      el("td", { class: "number", "data-name": "moves in an hour" }, row.moved.toLocaleString("en")),
      el("td", { class: "wrong" }, row.wrong.length
        ? [el("p", { class: `note ${row.level === "fail" ? "bad" : "warn"}` }, row.wrong[0]),
          row.wrong.length > 1
            ? el("span", { class: "muted small" }, `and ${row.wrong.length - 1} more`) : null]
        : el("span", { class: "muted none" }, "–")));
  };

  const chosen = () => {
    const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const onlyWrong = by("only-wrong").checked;
    return [...rows.values()].filter((row) => {
      if (onlyWrong && !row.level) return false;
      const text = `${row.id} ${row.state} ${row.cause} ${row.wrong.join(" ")} ${row.kind}`.toLowerCase();
      return words.every((word) => text.includes(word));
    }).sort(compare);
  };

  const render = () => {
    const found = chosen();
    const list = found.slice(0, SHOWN_MAX).map((row) => {
      const key = `${row.prefix}|${row.id}`;
      const known = elements.get(key);
      if (known && known[0] === row) return known[1];
      const made = line(row);
      elements.set(key, [row, made]);
      return made;
    });
    by("rows").replaceChildren(...list);
    const wrong = [...rows.values()].filter((row) => row.level).length;
    by("summary").textContent = [
      muster.count(rows.size, "group"),
      `${wrong || "none"} with something wrong`,
      found.length === rows.size ? "" : `${found.length} shown`,
      found.length > SHOWN_MAX ? `only the first ${SHOWN_MAX}; search to see others` : "",
    ].filter(Boolean).join(" · ");
    by("empty").hidden = rows.size > 0 || !render.isRead;
    for (const button of document.querySelectorAll("[data-sort]")) {
      const isIt = button.dataset.sort === sort.by;
      const way = sort.down ? "descending" : "ascending";
      button.closest("th").setAttribute("aria-sort", isIt ? way : "none");
    }
  };

  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const name = button.dataset.sort;
      const isText = name === "name" || name === "state";
      sort = { by: name, down: sort.by === name ? !sort.down : !isText };
      render();
    });
  }
  by("search").addEventListener("input", render);
  by("only-wrong").addEventListener("change", render);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input")) {
      event.preventDefault();
      by("search").focus();
    }
  });
  setInterval(() => {
    elements.clear(); // "12 s ago" goes on
    if (!document.hidden) render();
  }, 15000);

  const status = {};
  muster.startTheme();
  muster.follow("/events/fleet", (message, bytes) => {
    page.bytes += bytes;
    if (message.whole) {
      rows.clear();
      elements.clear();
    }
    for (const [key, row] of Object.entries(message.rows ?? {})) {
      if (row === null) {
        rows.delete(key);
        elements.delete(key);
      } else rows.set(key, row);
    }
    for (const name of ["caught_up", "fault", "skipped"]) {
      if (name in message) status[name] = message[name];
    }
    render.isRead = status.caught_up;
    muster.pulse(true, status);
    render();
  }, (isLive) => muster.pulse(isLive, status));
})();
