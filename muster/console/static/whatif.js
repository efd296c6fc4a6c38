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

  const renderMembers = () => {
    const filter = by("plan-filter").value.toLowerCase();
    const members = live.sorted().filter((member) => member.id.toLowerCase().includes(filter));
    fill(by("plan-members"), members.slice(0, 100).map((member) => {
      const box = el("input", { type: "checkbox", value: member.id });
      box.checked = removed.has(member.id);
      box.addEventListener("change", () => removed[box.checked ? "add" : "delete"](member.id));
      return el("label", { class: "check" }, box, ` ${member.id}`);
    }), members.length > 100 ? el("p", { class: "muted" }, `${members.length - 100} more: filter`) : null);
    choices(by("plan-capacity-of"), "no member's", live.sorted().map((member) => member.id));
    choices(by("plan-weight-of"), "none", live.head.units.map(([name]) => name));
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

  const show = async () => {
    const holder = by("plan-answer");
    holder.setAttribute("aria-busy", "true");
    try {
      const fields = asked();
      const text = new URLSearchParams([...Object.entries(key), ...fields]).toString();
      const plan = await ask(`/api/plan?${text}`);
      muster.group.showPlan(plan);
      fill(holder, muster.planPanel(plan, { onTask: muster.group.openTask, onCopy: copy }),
        doing(fields));
      muster.say(by("plan-count").textContent);
    } catch (error) {
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

  const write = async (path, body, place) => {
    try {
      const { said } = await muster.write(url(path, key), { ...body, confirmed: true });
      place.replaceWith(el("p", { class: "note good", role: "status" }, said));
    } catch (error) {
      place.replaceWith(el("p", { class: "note bad", role: "alert" }, error.message));
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
            `${key.g}: ${by("plan-count").textContent}`)) write("/api/config", { config, assignor }, place);
        },
      }, "Change the settings…");
      place.append(button);
      buttons.push(place);
    }
    return buttons;
  };

  /** The buttons in a member's panel. */
  muster.memberActions = (state, slot) => {
    const member = state.members.get(slot);
    if (!member) return null;
    const place = el("p", { class: "actions" });
    place.append(el("button", {
      onclick: () => {
        removed.clear();
        removed.add(member.id);
        document.querySelector('[data-tab="plan"]').click();
        renderMembers();
        show();
      },
    }, "What if it leaves?"));
    if (allow.has("drain") && state.head.kind !== "shadowed") {
      const on = !member.draining;
      place.append(el("button", {
        class: on ? "danger" : "",
        onclick: async () => {
          const text = on
            ? "It gives all its tasks away and gets no new ones, until the drain is cancelled."
            : "It may get tasks again.";
          if (await confirmed(on ? `Drain ${member.id}?` : `Cancel the drain of ${member.id}?`, text)) {
            write("/api/drain", { member: member.id, on }, place);
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
    fill(by("plan-answer"));
    muster.group.leavePlan();
  });
  by("plan-filter").addEventListener("input", renderMembers);
  document.querySelector('[data-tab="plan"]').addEventListener("click", renderMembers);
})();
