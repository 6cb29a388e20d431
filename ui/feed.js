// What goes on, from /admin/watch: one event a second while somebody looks. A tab that nobody sees
// lets go of the stream after a while, so that one left open costs nothing.
import {ask, events, get} from "./api.js";

const KEPT = 600; // seconds of history, for the curves
const MINUTE = 60, HOUR = 3600;
const REQUESTS = 1000;
const HIDDEN_MS = 30000;
const RETRY_MS = [1000, 2000, 5000, 10000, 30000];

export const state = {
    last: null,          // the newest event
    history: [],         // of each second: {t, gateway, totals}
    past: new Map(),     // of each worker's last hour, by its index: what it had counted each minute, the oldest first
    requests: new Map(), // by id, oldest first: {id, line, decision}
    changes: 0,          // of requests
    link: "waiting",
};
const listeners = new Set();
let aborter = null, tries = 0, timer = 0;

export function listen(fn) {
    listeners.add(fn);
    return () => listeners.delete(fn);
}

function tell(what) {
    for (const fn of listeners) fn(what);
}

function setLink(link) {
    state.link = link;
    tell("link");
}

function entry(id) {
    const e = state.requests.get(id) || {id};
    state.requests.set(id, e);
    return e;
}

function keepRequests(lines, decisions) {
    // What only asks what there is, such as a list of models, is no request to look at.
    for (const line of lines.filter((l) => l.method !== "GET")) entry(line.request_id).line = line;
    // A worker's last decisions come with several events.
    const news = decisions.filter((d) => state.requests.get(d.id)?.decision?.t !== d.t);
    for (const d of news) entry(d.id).decision = d;
    if (lines.length + news.length > 0) state.changes++;
    while (state.requests.size > REQUESTS) state.requests.delete(state.requests.keys().next().value);
}

// Sums over all workers of what they count.
export function totals(event) {
    const sum = {};
    const add = (to, from) => {
        for (const [k, v] of Object.entries(from)) {
            if (typeof v === "number") to[k] = (to[k] || 0) + v;
            else if (Array.isArray(v) && k === "n") to[k] = v.map((x, i) => x + (to[k]?.[i] || 0));
            else if (Array.isArray(v) && k === "le") to[k] = v;
            else if (v && typeof v === "object" && !Array.isArray(v)) add(to[k] ??= {}, v);
        }
    };
    for (const w of event.workers) {
        if (!w.now) continue;
        const {tiers, decisions, ...counted} = w.now;
        add(sum, counted);
        for (const t of tiers || []) {
            const {tier, ...of} = t;
            add((sum.tiers ??= {})[tier] ??= {}, of);
        }
    }
    return sum;
}

// Goes on with what the workers have kept. One that counts from nothing again has been started anew.
function keepMinutes(event) {
    for (const w of event.workers) {
        if (!w.now?.tokens) continue;
        const list = state.past.get(w.index) || [], last = list.at(-1);
        if (last && last.generated > w.now.generated) list.length = 0;
        if (list.length === 0 || event.t >= last?.t + MINUTE) list.push({...w.now, decisions: [], t: event.t});
        while (list[0].t < event.t - HOUR - MINUTE) list.shift();
        state.past.set(w.index, list);
    }
}

// What all workers had counted so long ago, to the minute, or when they began: {t, totals}; null: no worker counts.
export function ago(seconds) {
    const first = [...state.past].filter(([index]) => state.last.workers.some((w) => w.index === index && w.now))
        .map(([, list]) => list.find((x) => x.t >= state.last.t - seconds - 1) || list.at(-1));
    if (first.length === 0) return null;
    return {t: Math.min(...first.map((x) => x.t)), totals: totals({workers: first.map(({t, ...now}) => ({now}))})};
}

function take(event) {
    state.last = event;
    keepMinutes(event);
    state.history.push({t: event.t, gateway: event.gateway, totals: totals(event)});
    if (state.history.length > KEPT) state.history.shift();
    keepRequests(event.requests, event.workers.flatMap((w) => w.now?.decisions || []));
    tell("event");
}

async function follow() {
    aborter = new AbortController();
    try {
        const [old, past] = await Promise.all(
            ["decisions", "past"].map((x) => get(`/admin/${x}`, aborter.signal)));
        state.past = new Map(past.workers.filter((w) => w.past?.length).map((w) => [w.index, w.past]));
        const response = await ask("/admin/watch", {signal: aborter.signal});
        keepRequests([], old.data.reverse());
        setLink("live");
        for await (const event of events(response)) {
            tries = 0;
            take(event);
        }
    } catch (e) {
        if (e.name === "AbortError") return;
    }
    setLink("lost");
    timer = setTimeout(follow, RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)]);
}

function stop() {
    clearTimeout(timer);
    aborter?.abort();
    aborter = null;
    setLink("paused");
}

export function start() {
    let hidden = 0;
    document.addEventListener("visibilitychange", () => {
        clearTimeout(hidden);
        if (document.hidden) hidden = setTimeout(stop, HIDDEN_MS);
        else if (!aborter) follow();
    });
    follow();
}
