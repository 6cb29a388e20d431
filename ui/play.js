// The same question over the same documents, once with a full prefill and once blended, side by side.
// The admin address also answers /v1: an operator asks here with the admin key.
import {ask, events, get, send} from "./api.js";
import {h, key, ms, note, part, refill, shares} from "./dom.js";
import {heatOf} from "./heat.js";
import {drawStrip, heatPanel, kinds, stripKey} from "./requests.js";

export const title = "Playground";
const NAMESPACE = "playground"; // its records are no other caller's
const ANSWER_TOKENS = 96;
const EXAMPLES = ["1-lighthouse", "2-railway", "3-observatory", "4-bakery"];
const QUESTION = "Who built the lighthouse at Harrow Point, and when?";

function request(model, documents, question, mode) {
    const part = (text) => ({type: "text", text});
    return {
        model, stream: true, max_tokens: ANSWER_TOKENS, temperature: 0,
        messages: [{role: "system", content: "Answer the question from the documents."},
                   {role: "user", content: [...documents, question].map(part)}],
        kvblend: {mode, namespace: NAMESPACE, explain: true},
    };
}

// Asks and tells of each text as it comes: {text, ttft, whole, report}.
async function answer(body, signal, tell) {
    const begun = performance.now(), out = {text: "", ttft: 0};
    const response = await ask("/v1/chat/completions", {
        method: "POST", signal, body: JSON.stringify(body), headers: {"Content-Type": "application/json"}});
    out.id = response.headers.get("x-request-id");
    for await (const e of events(response)) {
        if (e.error) throw new Error(e.error.message);
        const text = e.choices?.[0]?.delta?.content;
        if (text && !out.ttft) out.ttft = performance.now() - begun;
        out.text += text || "";
        out.report = e.kvblend ?? out.report;
        tell(out);
    }
    out.whole = performance.now() - begun;
    tell(out);
    return out;
}

// Words of b that are not in the longest common subsequence with a: [[word, new], …].
export function differences(a, b) {
    const x = a.split(/(\s+)/), y = b.split(/(\s+)/);
    const best = Array.from({length: x.length + 1}, () => new Uint16Array(y.length + 1));
    for (let i = x.length - 1; i >= 0; i--)
        for (let j = y.length - 1; j >= 0; j--)
            best[i][j] = x[i] === y[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    const out = [];
    for (let i = 0, j = 0; j < y.length;) {
        if (i < x.length && x[i] === y[j]) {
            out.push([y[j++], false]);
            i++;
        } else if (i < x.length && best[i + 1][j] >= best[i][j + 1]) i++;
        else out.push([y[j++], true]);
    }
    return out;
}

function drawAnswer(box, name, out, beside) {
    const t = out.report?.tokens, all = t && t.prefix + t.reused + t.recomputed + t.computed;
    const mark = ([word, isNew]) => isNew && word.trim() ? h("ins", {}, word) : word;
    const words = beside ? differences(beside.text, out.text).map(mark) : out.text;
    const faster = beside?.ttft && out.ttft ? ` (${(beside.ttft / out.ttft).toFixed(1)}x as fast)` : "";
    refill(box, h("div", {class: "bar"}, h("h2", {}, name), h("span", {class: "grow"}),
                  h("span", {}, out.ttft ? `first token ${ms(out.ttft)}${faster}` : "…")),
           t && shares(kinds(t), "thick"),
           t && key(kinds(t).filter(([, n]) => n > 0).map(([k, n, kind]) => [k, kind, part(n, all)])),
           out.report && h("p", {class: "faint"}, out.report.strategy,
                           out.report.ratio > 0 && ` at ${out.report.ratio}`, out.report.why && `: ${out.report.why}`),
           h("p", {class: "answer"}, words));
}

// The blend's prompt: which chunks came from where, which of their tokens were recomputed.
async function drawPrompt(box, id) {
    const [decision, heat] = await Promise.all([get(`/admin/decisions/${encodeURIComponent(id)}`), heatOf(id)]);
    const d = decision.data[0], tokens = heatPanel(heat.get(d.prompt));
    refill(box, h("section", {class: "panel"}, h("h2", {}, "The blend's prompt"),
                  drawStrip(d, heat.get(d.prompt), (c) => tokens.show(c)), stripKey(d)),
           tokens.box);
}

// Backwards, from another one on: of three or more none stands behind the one that it stood behind.
export function shuffled(list) {
    const back = [...list].reverse(), first = list.length > 2 ? Math.floor(Math.random() * list.length) : 0;
    return [...back.slice(first), ...back.slice(0, first)];
}

export function open(main) {
    const documents = h("textarea", {id: "documents", rows: "10", spellcheck: "false"});
    const question = h("input", {id: "question", value: QUESTION, class: "grow"});
    const model = h("select", {id: "model"});
    const said = h("p", {role: "status", class: "note"});
    const boxes = ["Full prefill", "Blend"].map((name) => h("section", {class: "panel", "aria-label": name}));
    const go = h("button", {type: "button", class: "main", onclick: () => run()}, "Ask both");
    const prompt = h("div", {class: "stack"});
    let aborter = null;

    const split = () => documents.value.split(/\n\s*\n\s*\n?/).map((x) => x.trim()).filter(Boolean);
    const put = (list) => {
        documents.value = list.join("\n\n");
    };

    async function run() {
        const list = split();
        if (list.length === 0 || !question.value.trim()) {
            refill(said, "Documents and a question are needed.");
            return;
        }
        aborter = new AbortController();
        go.disabled = true;
        [...boxes, prompt].forEach((b) => refill(b));
        try {
            const body = (docs, mode) => request(model.value, docs, question.value, mode);
            refill(said, "Asking with a full prefill.");
            const full = await answer(body(list, "full"), aborter.signal,
                                      (out) => drawAnswer(boxes[0], "Full prefill", out));
            refill(said, "Storing the documents' KV.");
            await send("POST", "/v1/segments", {texts: list, namespace: NAMESPACE, model: model.value});
            refill(said, "Asking again, with the documents in another order and their KV at hand.");
            const blend = await answer(body(shuffled(list), "blend"), aborter.signal,
                                       (out) => drawAnswer(boxes[1], "Blend, other order", out, full));
            await drawPrompt(prompt, blend.id);
            refill(said, "Underlined words differ from the full prefill's answer.");
        } catch (e) {
            if (e.name !== "AbortError") refill(said, h("span", {class: "bad"}, e.message));
        }
        go.disabled = false;
    }

    async function examples() {
        const texts = await Promise.all(EXAMPLES.map(async (name) => (await fetch(`/ui/${name}.txt`)).text()));
        put(texts.map((t) => t.trim().replace(/\s+/g, " ")));
    }

    main.append(
        h("section", {class: "panel"},
          note("Documents are set apart by an empty line. Both requests run for real, one after the other; what they " +
               "store is in the namespace ", h("code", {}, NAMESPACE), "."),
          h("label", {class: "stack", for: "documents"}, "Documents", documents),
          h("div", {class: "bar"}, h("button", {type: "button", onclick: examples}, "Example documents"),
            h("button", {type: "button", onclick: () => put(shuffled(split()))}, "Shuffle")),
          h("label", {class: "stack", for: "question"}, "Question", question),
          h("div", {class: "bar"}, h("label", {for: "model"}, "Model", model), go)),
        said, h("div", {class: "answers"}, boxes), prompt);
    get("/v1/models").then((list) => refill(model, list.data.map((m) => h("option", {}, m.id))),
                           (e) => refill(said, h("span", {class: "bad"}, e.message)));
    return {close: () => aborter?.abort()};
}
