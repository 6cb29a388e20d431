// The admin API. The key is asked for once, kept for this tab alone, and sent as a header: nothing
// that another page could make the browser send by itself.
import {h} from "./dom.js";

const KEY = "kvblend.admin-key";
let asking = null;

export class Refused extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

function headers() {
    const key = sessionStorage.getItem(KEY);
    return key ? {Authorization: `Bearer ${key}`} : {};
}

export function forgetKey() {
    sessionStorage.removeItem(KEY);
    location.reload();
}

// A link may bring the key along ("#play?key=…", as tools/quickstart prints it): what stands behind # reaches no server,
// and from here on neither the address bar nor the history shows it.
export function takeKey() {
    const [view, query] = location.hash.split("?");
    if (query === undefined) return;
    history.replaceState(null, "", view || "#");
    const key = new URLSearchParams(query).get("key");
    if (key) sessionStorage.setItem(KEY, key);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

function askForKey(wrong) {
    asking ??= new Promise((resolve) => {
        const input = h("input", {type: "password", id: "key", autocomplete: "off", required: true});
        const d = h("dialog", {"aria-labelledby": "key-title"},
                    h("form", {method: "dialog"}, h("h2", {id: "key-title"}, "Admin key"),
                      h("p", {class: wrong ? "bad" : "note"},
                        wrong ? "This key is not accepted." :
                            "One of admin.keys. It is kept in this tab until the tab is closed."),
                      h("label", {class: "stack", for: "key"}, "Key", input),
                      h("div", {class: "bar"}, h("button", {class: "main"}, "Open"))));
        d.addEventListener("cancel", (e) => e.preventDefault());
        d.addEventListener("close", () => {
            sessionStorage.setItem(KEY, input.value.trim());
            d.remove();
            asking = null;
            resolve();
        });
        document.body.append(d);
        d.showModal();
    });
    return asking;
}

async function refusal(r) {
    let message = `${r.status} ${r.statusText}`;
    try {
        message = (await r.json()).error.message;
    } catch {
        // Not the API's shape: the status says what is known.
    }
    return new Refused(r.status, message);
}

// fetch() with the key, which is asked for as long as the one at hand is refused. Not so below /v1: where an admin key
// does not open that (on the public address), no other would.
export async function ask(path, o = {}) {
    for (;;) {
        const had = hasKey();
        const r = await fetch(path, {cache: "no-store", ...o, headers: {...o.headers, ...headers()}});
        if (r.ok) return r;
        if (r.status !== 401 || (had && path.startsWith("/v1/"))) throw await refusal(r);
        await askForKey(had);
    }
}

export async function get(path, signal) {
    return (await ask(path, {signal})).json();
}

export async function send(method, path, body, headers) {
    const json = body === undefined ? {} :
        {body: JSON.stringify(body), headers: {"Content-Type": "application/json", ...headers}};
    return (await ask(path, {method, ...json})).json();
}

// The data of each server-sent event of an answer, parsed.
export async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
        const {done, value} = await reader.read();
        if (done) return;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
            const data = text.slice(0, end).split("\n").filter((l) => l.startsWith("data: ")).map((l) => l.slice(6))
                .join("\n");
            if (data && data !== "[DONE]") yield JSON.parse(data);
        }
    }
}
