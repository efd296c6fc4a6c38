// What if: asks for a plan and draws it; and, where the console may write, does it.
"use strict";

(() => {
  const { by, el, fill, ask, url } = muster;
  const form = by("plan-form");
  if (!form) return;
  const { key, live } = muster.group;
  const allow = new Set(muster.meta("allow").split(",").filter(Boolean));
  const removed = new Set();

  // ---------------------------------------------------------------- the question

  let offered = ""; // the members and units that the form offers

  const newest = () => JSON.stringify(
    [live.sorted().map((member) => member.id), (live.head.units ?? []).map(([name]) => name)]);

  const renderMembers = () => {
    offered = newest();
    for (const id of removed) if (!live.member(id)) removed.delete(id);
    const focused = by("plan-members").contains(document.activeElement)
      ? document.activeElement.value : null;
    const filter = by("plan-filter").value.toLowerCase();
    const members = live.sorted().filter((member) => member.id.toLowerCase().includes(filter));
    fill(by("plan-members"), members.slice(0, 100).map((member) => {
      const box = el("input", { type: "checkbox", value: member.id });
      box.checked = removed.has(member.id);
      box.addEventListener("change", () => removed[box.checked ? "add" : "delete"](member.id));
      return el("label", { class: "check" }, box, ` ${member.id}`);
    }), members.length > 100 ? el("p", { class: "muted" }, `${members.length - 100} more: filter`) : null);
    if (focused !== null) {
      [...by("plan-members").querySelectorAll("input")].find((box) => box.value === focused)?.focus();
    }
    choices(by("plan-capacity-of"), "no member's", live.sorted().map((member) => member.id));
    choices(by("plan-weight-of"), "none", (live.head.units ?? []).map(([name]) => name));
  };

  /** Fill a list of choices and keep what is chosen. */
  const choices = (list, none, names) => {
    const kept = list.value;
    fill(list, el("option", { value: "" }, none),
      names.slice(0, 500).map((name) => el("option", { value: name }, name)));
    list.value = kept;
  };

  const asked = () => {
    const fields = [];
    for (const id of removed) fields.push(["remove", id]);
    const number = Math.min(Number(by("plan-add").value) || 0, 200);
    const names = new Set([...live.members.values()].map((member) => member.id));
    for (let made = 0, next = 1; made < number; next++) {
      const id = `new-${next}`;
      if (names.has(id)) continue;
      const row = { id, capacity: Number(by("plan-add-capacity").value) || 1 };
      if (by("plan-add-rack").value) row.rack = by("plan-add-rack").value;
      fields.push(["add", JSON.stringify(row)]);
      made += 1;
    }
    for (const name of ["capacity", "weight"]) {
      const of = by(`plan-${name}-of`).value, value = by(`plan-${name}`).value;
      if (of && value) fields.push([name, `${of}=${value}`]);
    }
    for (const line of by("plan-config").value.split("\n")) {
      if (line.trim()) fields.push(["config", line.trim()]);
    }
    if (by("plan-assignor").value) fields.push(["assignor", by("plan-assignor").value]);
    return fields;
  };

  let asking = 0; // the newest question; an older answer is left out

  const show = async () => {
    const holder = by("plan-answer"), request = ++asking;
    holder.setAttribute("aria-busy", "true");
    try {
      const fields = asked();
      const text = new URLSearchParams([...Object.entries(key), ...fields]).toString();
      const plan = await ask(`/api/plan?${text}`);
      if (request !== asking) return;
      muster.group.showPlan(plan);
      fill(holder, muster.planPanel(plan, { onTask: muster.group.openTask, onCopy: copy }),
        doing(fields));
      muster.say(by("plan-count").textContent);
    } catch (error) {
      if (request !== asking) return;
      fill(holder, el("p", { class: "note bad", role: "alert" }, error.message));
    }
    holder.removeAttribute("aria-busy");
  };

  const copy = async (line, button) => {
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };

  // ---------------------------------------------------------------- doing it

  /** Ask a person before something is written. */
  const confirmed = (title, text) => new Promise((resolve) => {
    const dialog = by("confirm");
    by("confirm-title").textContent = title;
    by("confirm-text").textContent = text;
    dialog.returnValue = "";
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.showModal();
  });

  for (const [id, answer] of [["confirm-yes", "yes"], ["confirm-no", "no"]]) {
    by(id).addEventListener("click", () => by("confirm").close(answer));
  }

  const planOutcome = el("div", { id: "plan-outcome", "aria-live": "polite" });
  by("plan-answer").after(planOutcome);

  /** Write something; what became of it goes to a place that news of the group never replaces. */
  const write = async (path, body, place, what) => {
    fill(place, el("p", { class: "note", role: "status" }, `${what}: waiting for Kafka…`));
    try {
      const { said } = await muster.write(url(path, key), { ...body, confirmed: true });
      fill(place, el("p", { class: "note good", role: "status" }, said));
    } catch (error) {
      fill(place, el("p", { class: "note bad", role: "alert" }, `${what}: ${error.message}`));
    }
  };

  const doing = (fields) => {
    const config = Object.fromEntries(fields.filter(([name]) => name === "config").map(([, line]) => {
      const at = line.indexOf("=");
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }));
    const assignor = fields.find(([name]) => name === "assignor")?.[1];
    const buttons = [];
    if (allow.has("config") && live.head.kind !== "shadowed" && (Object.keys(config).length || assignor)) {
      const place = el("p", {});
      const button = el("button", {
        class: "danger",
        onclick: async () => {
          if (await confirmed("Change the group's settings?",
            `${key.g}: ${by("plan-count").textContent}`)) {
            write("/api/config", { config, assignor }, planOutcome, "Settings");
          }
        },
      }, "Change the settings…");
      place.append(button);
      buttons.push(place);
    }
    return buttons;
  };

  /** The buttons in a member's panel: for the group as it is now, whatever the page shows. */
  muster.memberActions = (id) => {
    const member = live.member(id);
    if (!member) return null;
    const place = el("p", { class: "actions" });
    place.append(el("button", {
      onclick: () => {
        removed.clear();
        removed.add(id);
        muster.tab("plan");
        show();
      },
    }, "What if it leaves?"));
    if (allow.has("drain") && live.head.kind !== "shadowed") {
      const on = !member.draining;
      place.append(el("button", {
        class: on ? "danger" : "",
        onclick: async () => {
          const text = on
            ? "It gives all its tasks away and gets no new ones, until the drain is cancelled."
            : "It may get tasks again.";
          const what = on ? `Drain ${id}` : `Cancel the drain of ${id}`;
          if (await confirmed(`${what}?`, text)) {
            write("/api/drain", { member: id, on }, muster.group.outcome, what);
          }
        },
      }, on ? "Drain…" : "Cancel the drain…"));
    }
    return place;
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  by("plan-clear").addEventListener("click", () => {
    form.reset();
    removed.clear();
    renderMembers();
    asking += 1;
    fill(by("plan-answer")).removeAttribute("aria-busy");
    fill(planOutcome);
    muster.group.leavePlan();
  });
  by("plan-filter").addEventListener("input", renderMembers);
  document.addEventListener("muster-tab", ({ detail }) => {
    if (detail === "plan") renderMembers();
  });
  document.addEventListener("muster-news", () => {
    if (!by("panel-plan").hidden && offered !== newest()) renderMembers();
  });
})();
