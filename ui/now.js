// What goes on now: rates and distributions of the last minutes, from the differences of what the
// workers have counted.
import {bars, count, figures, h, key, ms, note, part, percent, refill, shares, svg} from "./dom.js";
import {ago, state} from "./feed.js";
import {kinds, modeName, modeOf, startedAt} from "./requests.js";

export const title = "Now";
const WINDOWS = [[60, "last minute"], [600, "last ten minutes"], [3600, "last hour"], [0, "since the start"]];
const MINUTE = 60; // the seconds of one are known, the minutes of an hour
const CURVE = {width: 600, height: 90};

// What was counted in the window: the newest totals less those of its beginning. A worker that has
// restarted counts from nothing: less than nothing is taken as what it has counted since.
function since(seconds) {
    const all = state.history, last = all.at(-1);
    if (!last) return null;
    if (!seconds) return {seconds: last.gateway.uptime_s, totals: last.totals};
    const begun = seconds > MINUTE ? ago(seconds) : all.find((x) => x.t >= last.t - seconds);
    const first = begun || {t: last.t, totals: {}};
    const less = (a, b) => {
        if (typeof a === "number") return Math.max(0, a - (b || 0));
        if (Array.isArray(a)) return a.map((x, i) => Math.max(0, x - (b?.[i] || 0)));
        return Object.fromEntries(Object.entries(a).map(([k, v]) => [k, k === "le" ? v : less(v, b?.[k])]));
    };
    return {seconds: Math.max(1, last.t - first.t), totals: less(last.totals, first.totals)};
}

// The value below which a share of what a histogram holds lies, within its bucket by proportion.
export function quantile(hist, share) {
    const all = hist.n.reduce((a, b) => a + b, 0);
    let left = share * all;
    if (!all) return NaN;
    for (let i = 0; i < hist.n.length; i++) {
        if (left <= hist.n[i] && hist.n[i] > 0) {
            const low = i ? hist.le[i - 1] : 0, high = hist.le[i] ?? low;
            return low + (high - low) * left / hist.n[i];
        }
        left -= hist.n[i];
    }
    return hist.le.at(-1);
}

function drawHistogram(name, hist, marks) {
    const all = hist.n.reduce((a, b) => a + b, 0);
    const used = hist.n.map((n, i) => n > 0 ? i : -1).filter((i) => i >= 0);
    if (!all) return [h("h2", {}, name), note("Nothing in this time.")];
    const lo = Math.max(0, used[0] - 1), hi = Math.min(hist.n.length - 1, used.at(-1) + 1);
    const shown = hist.n.slice(lo, hi + 1), most = Math.max(...shown), wide = CURVE.width / shown.length;
    const bound = (i) => i < hist.le.length ? ms(hist.le[i] * 1000) : "above";
    const text = marks.map(([label, q]) => `${label} ${ms(quantile(hist, q) * 1000)}`).join(", ");
    return [
        h("div", {class: "bar"}, h("h2", {}, name), h("span", {class: "grow"}), h("span", {}, text)),
        svg("svg", {viewBox: `0 0 ${CURVE.width} ${CURVE.height + 18}`, role: "img",
                    "aria-label": `${name}: ${text}, of ${all}`},
            shown.map((n, i) => [
                svg("rect", {x: i * wide + 1, y: CURVE.height - CURVE.height * n / most, width: Math.max(1, wide - 2),
                             height: CURVE.height * n / most, class: "c-reused"},
                    svg("title", {}, `up to ${bound(lo + i)}: ${n}`)),
                (i % Math.ceil(shown.length / 8) === 0) &&
                    svg("text", {x: (i + 1) * wide, y: CURVE.height + 14, "text-anchor": "end"}, bound(lo + i))]),
            svg("line", {class: "axis", x1: 0, x2: CURVE.width, y1: CURVE.height, y2: CURVE.height})),
    ];
}

// A figure of each second over the history.
function drawCurve(name, value, unit) {
    const points = state.history.map((x, i, all) => i ? value(x, all[i - 1]) : 0).slice(1);
    if (points.length < 2) return [h("h2", {}, name), note("Begins in a moment.")];
    const most = Math.max(...points, 1e-9), step = CURVE.width / Math.max(1, points.length - 1);
    const height = (p) => CURVE.height - (CURVE.height - 4) * p / most;
    const line = points.map((p, i) => `${(i * step).toFixed(1)},${height(p).toFixed(1)}`).join(" ");
    const last = points.slice(-5), mean = last.reduce((a, b) => a + b, 0) / last.length;
    return [
        h("div", {class: "bar"}, h("h2", {}, name), h("span", {class: "grow"}),
          h("span", {}, `${unit(mean)} now, at most ${unit(most)}`)),
        svg("svg", {viewBox: `0 0 ${CURVE.width} ${CURVE.height}`, preserveAspectRatio: "none", role: "img",
                    "aria-label": `${name}: ${unit(mean)} now, at most ${unit(most)}`},
            svg("polygon", {class: "area", points: `0,${CURVE.height} ${line} ${CURVE.width},${CURVE.height}`}),
            svg("polyline", {class: "trace", points: line, "vector-effect": "non-scaling-stroke"})),
    ];
}

const sum = (o) => Object.values(o || {}).reduce((a, b) => a + b, 0);

function median(list) {
    const known = list.filter((x) => x > 0).sort((a, b) => a - b);
    return known[Math.floor(known.length / 2)];
}

// Counted by the workers; the times are those of the requests that the page knows.
function drawModes(t, begin) {
    const rows = [...state.requests.values()].filter((r) => startedAt(r) >= begin), by = new Map();
    for (const [strategy, n] of Object.entries(t.decided || {}))
        if (n > 0) by.set(modeName(strategy), (by.get(modeName(strategy)) || 0) + n);
    const all = sum(Object.fromEntries(by));
    const line = ([mode, n]) => {
        const list = rows.filter((r) => modeOf(r) === mode);
        const took = median(list.map((r) => r.decision?.prefill_ms));
        const full = median(list.map((r) => r.decision?.full_ms));
        const beside = full && mode !== "full" ? ` where full would take ${ms(full)}` : "";
        return [mode, n / all, `${count(n)}${took ? `, prefill ${ms(took)}${beside}` : ""}`,
                mode === "full" ? "computed" : "reused"];
    };
    return [h("h2", {}, "Requests by what ran"),
            all ? bars([...by].sort().map(line)) : note("None in this time.")];
}

function drawTiers(t) {
    const tiers = Object.entries(t.tiers || {}), hits = tiers.map(([name, x]) => [name, x.hits || 0]);
    // RAM's figure holds every look-up that found its record; what came from below is counted there, too.
    const below = hits.slice(1).reduce((a, [, n]) => a + n, 0);
    const own = hits.map(([name, n], i) => [name, i ? n : Math.max(0, n - below), name]);
    const misses = Object.entries(t.tiers?.ram?.misses || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
    const lost = sum(t.tiers?.ram?.misses), all = own.reduce((a, [, n]) => a + n, 0) + lost;
    return [
        h("h2", {}, "Look-ups"),
        shares([...own, ["computed", lost, "missed"]], "thick"),
        key([...own, ["computed", lost, "missed"]].map(([kind, n, name]) => [kind, name, part(n, all)])),
        misses.length > 0 && h("h2", {}, "Misses by reason"),
        misses.length > 0 && bars(misses.map(([why, n]) => [why, n / lost, count(n), "computed"])),
    ];
}

function drawEngine(t, seconds, event) {
    const busy = t.busy_s || {}, used = sum(busy), workers = event.workers.filter((w) => w.now).length || 1;
    const free = Math.max(0, seconds * workers - used);
    const parts = [...["prefill", "decode", "build"].map((x) => [x, busy[x] || 0, x]), ["none", free, "idle"]];
    const lag = Math.max(event.gateway.loop_lag_ms, ...event.workers.map((w) => w.now?.loop_lag_ms || 0));
    return [h("h2", {}, "The engine's time"), shares(parts, "thick"),
            key(parts.slice(0, 3).map(([k, n, name]) => [k, name, percent(n / (used + free))])),
            h("p", {class: "faint"}, `${count(t.builds_pending)} builds wait; loop lag ${ms(lag)}.`)];
}

function draw(seconds) {
    const event = state.last, w = since(seconds);
    if (!w) return note("Waiting for the gateway.");
    const g = event.gateway, t = w.totals, now = state.history.at(-1).totals, marks = [["p50", 0.5], ["p95", 0.95]];
    const tokens = t.tokens || {}, prompt = sum(tokens);
    if (!t.ttft_s)
        return note(event.workers.length ? "No worker is ready yet." :
            "This gateway has no worker: upstreams say nothing of their caches. Requests shows what went through.");
    const perSecond = (x, y) => (x.totals.generated - y.totals.generated) / Math.max(0.2, x.t - y.t);
    return [
        figures([
            ["In flight", g.in_flight, `of ${g.in_flight_max}`], ["Waiting", g.waiting + (now.waiting || 0), ""],
            ["First token, median", ms(quantile(t.ttft_s, 0.5) * 1000), `p95 ${ms(quantile(t.ttft_s, 0.95) * 1000)}`],
            ["Prompt tokens not computed", percent(prompt ? (tokens.prefix + tokens.reused) / prompt : NaN), ""],
            ["Generated", count(t.generated / w.seconds), "tokens/s"]]),
        h("div", {class: "grid"}, [
            drawHistogram("Time to the first token", t.ttft_s, marks),
            drawHistogram("Between tokens", t.inter_token_s, marks),
            [h("h2", {}, "Prompt tokens by how their KV came about"), shares(kinds(tokens), "thick"),
             key(kinds(tokens).map(([kind, n, name]) => [kind, name, part(n, prompt)])),
             drawModes(t, seconds ? event.t - seconds : 0)],
            drawTiers(t),
            drawCurve("Generated tokens a second", perSecond, count),
            drawEngine(t, w.seconds, event),
        ].map((x) => h("section", {class: "panel"}, x))),
    ];
}

export function open(main) {
    const box = h("div", {class: "stack"});
    let seconds = 60;
    const update = () => refill(box, draw(seconds));
    const pick = h("select", {onchange: (e) => {
        seconds = Number(e.target.value);
        update();
    }}, WINDOWS.map(([s, name]) => h("option", {value: s}, name)));
    main.append(h("div", {class: "bar"}, h("label", {}, "Time", pick)), box);
    return {update};
}
