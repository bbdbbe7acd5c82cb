// Thumbs on hits and answers, stored as judgements.

import { post } from "./api.js";
import { draw, make, say } from "./dom.js";

const THUMB = "M3 11h4v10H3zM9 20V11l4-8c1.8 0 2.8 1.4 2.4 3.2L14.8 10h5c1.2 0 2 1.1 1.7 2.3l-1.8 7c-.3 1-1.1 1.7-2.1 1.7h-7z";

/** Two buttons that judge documents for a query; null if there is not a document to judge. `of`: what is judged. */
export function rating(query, kb, documents, of) {
  if (!documents.length) return null;
  const buttons = [["up", "Helpful"], ["down", "Not helpful"]].map(([value, name]) =>
    make("button", { type: "button", class: `plain thumb ${value}`, title: name, "aria-label": `${name}: ${of}`, "aria-pressed": "false", data: { value } },
      draw("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, draw("path", { d: THUMB }))));
  const judge = async (event) => {
    const pressed = event.target.closest("button");
    if (!pressed) return;
    try {
      await post("/feedback", { query, kb_id: kb, rating: pressed.dataset.value, document_ids: documents });
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === pressed));
      say("Thank you. Your feedback is stored.");
    } catch (fault) {
      say(`${fault.message}${fault.suggestion ? `. ${fault.suggestion}` : ""}`);
    }
  };
  return make("span", { class: "thumbs", onclick: judge }, buttons);
}
