// Helpers that every page uses. Names come from members and are hostile: everything is written as
// text (textContent), never as markup.
"use strict";

const muster = {};

(() => {
  /** Make an element: attributes, listeners ("onclick"), and children (elements or texts). */
  muster.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "class") made.className = value;
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return made;
  };

  muster.by = (id) => document.getElementById(id);

  /** Replace what an element holds; empty children are left out. */
  muster.fill = (element, ...children) => {
    element.replaceChildren(...children.flat(Infinity).filter((child) => child));
    return element;
  };

  muster.meta = (name) => document.querySelector(`meta[name="muster-${name}"]`)?.content ?? "";

  /** A URL of ours with a query; empty values are left out. */
  muster.url = (path, query) => {
    const filled = Object.entries(query).filter(([, value]) => value !== "" && value != null);
    const text = new URLSearchParams(filled).toString();
    return text ? `${path}?${text}` : path;
  };

  /** Ask for JSON. An error's message says what is wrong. */
  muster.ask = async (url, options = {}) => {
    const answer = await fetch(url, options);
    const text = await answer.text();
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      throw new Error(text.slice(0, 300) || `the console answered ${answer.status}`);
    }
    if (!answer.ok) throw new Error(value.error ?? `the console answered ${answer.status}`);
    return value;
  };

  /** Write something; the console checks the token. */
  muster.write = (url, body) =>
    muster.ask(url, {
      method: "POST",
      headers: { "content-type": "application/json", "x-muster-token": muster.meta("token") },
      body: JSON.stringify(body),
    });

  const UNITS = [[86400000, "d"], [3600000, "h"], [60000, "min"]];

  /** A span of time in words. */
  muster.span = (ms) => {
    if (ms === null || ms === undefined) return "–";
    for (const [unit, name] of UNITS) if (ms >= 2 * unit) return `${Math.floor(ms / unit)} ${name}`;
    if (ms >= 10000 || ms === 0) return `${Math.round(ms / 1000)} s`;
    return ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms)} ms`;
  };

  muster.ago = (atMs, nowMs = Date.now()) =>
    atMs ? `${muster.span(Math.max(Math.floor((nowMs - atMs) / 1000) * 1000, 0))} ago` : "–";

  /** A moment as time of day; with the date if it is another day. UTC, as the command line. */
  muster.when = (atMs, nowMs = Date.now()) => {
    const iso = new Date(atMs).toISOString();
    const isToday = iso.slice(0, 10) === new Date(nowMs).toISOString().slice(0, 10);
    return isToday ? iso.slice(11, 19) : `${iso.slice(0, 10)} ${iso.slice(11, 19)}`;
  };

  muster.count = (number, one, many = `${one}s`) =>
    `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

  /** A figure of at most three decimals. */
  muster.figure = (value) =>
    value === null || value === undefined ? "–" : String(Math.round(value * 1000) / 1000);

  /** What kind of cause a generation had; the timeline and the lists colour it. */
  muster.causeKind = (cause) => {
    if (/\b(expired|left|fenced|kicked|gone)\b/.test(cause)) return "loss";
    if (/\bdrain/.test(cause)) return "drain";
    if (/\bjoined\b|\breturned\b/.test(cause)) return "join";
    if (/\bconfig|setting|tasks|assignor|subtopolog|connector|→|->/.test(cause)) return "config";
    return "other";
  };

  const LEVELS = { bad: "bad", warn: "warn", info: "info", fail: "bad", ok: "good", skipped: "info" };

  /** A badge: its text says all, its colour repeats it. */
  muster.badge = (text, level) =>
    muster.el("span", { class: `badge ${LEVELS[level] ?? level}` }, text);

  const KINDS = {
    governed: "Members of Kafka's own protocol; muster adopt decides for them",
    shadowed: "Kafka coordinates this group; muster only looks at it",
  };

  /** What coordinates a group's members, where it is not muster. */
  muster.kindBadge = (kind) => {
    if (!KINDS[kind]) return null;
    const badge = muster.badge(kind, "info");
    badge.title = KINDS[kind];
    return badge;
  };

  muster.stateLevel = (state) =>
    ({ Stable: "good", Empty: "info", Reconciling: "warn", Assigning: "warn" })[state] ?? "bad";

  /** Say something to a screen reader. */
  muster.say = (text) => {
    const region = muster.by("said");
    if (region && region.textContent !== text) region.textContent = text;
  };

  // ---------------------------------------------------------------- light and dark

  const THEMES = ["auto", "light", "dark"];

  const stored = () => {
    try {
      return localStorage.getItem("muster-theme") ?? "auto";
    } catch {
      return "auto"; // storage is switched off
    }
  };

  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = muster.by("theme");
    if (button) button.title = `theme: ${theme}; press to change`;
    document.dispatchEvent(new Event("muster-theme"));
  };

  muster.startTheme = () => {
    show(stored());
    muster.by("theme")?.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
      try {
        localStorage.setItem("muster-theme", next);
      } catch {
        // It holds for this page then.
      }
      show(next);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      document.dispatchEvent(new Event("muster-theme")));
  };

  // ---------------------------------------------------------------- streams

  const AGAIN_MS = 2000;

  /** Follow a stream of events; `onMessage` gets JSON, `onLive` whether the connection stands. */
  muster.follow = (url, onMessage, onLive) => {
    const source = new EventSource(url);
    source.onopen = () => onLive(true);
    source.onerror = () => {
      onLive(false);
      // The browser tries again after a lost connection, but not after an error as the answer.
      if (source.readyState === EventSource.CLOSED) {
        setTimeout(() => muster.follow(url, onMessage, onLive), AGAIN_MS);
      }
    };
    source.onmessage = (event) => {
      onLive(true);
      onMessage(JSON.parse(event.data), event.data.length);
    };
  };

  /** Show whether the page is live. */
  muster.pulse = (isLive, status = {}) => {
    const pill = muster.by("pulse");
    if (!pill) return;
    const [text, level] = !isLive
      ? ["no connection to the console", "bad"]
      : status.fault
        ? [status.fault, "bad"]
        : status.caught_up === false
          ? ["reading…", "warn"]
          : ["live", "good"];
    if (pill.textContent !== text) pill.textContent = text;
    pill.className = `pulse ${level}`;
  };
})();
