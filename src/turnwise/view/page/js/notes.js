// A user's notes on a run are tags, a text and the archive flag; they are saved into its folder.

import { saveNotes } from "./api.js";
import { fill, h, html, icon } from "./dom.js";
import { visible } from "./format.js";

export function tagChips(tags, choose = null) {
  return tags.map((tag) =>
    choose
      ? html`<button class="chip tag" title=${`Show runs with the tag ${tag}`}
        onclick=${() => choose(tag)}>
        ${visible(tag)}
      </button>`
      : h("span.chip.tag", visible(tag)),
  );
}

function splitTags(text) {
  const tags = text.split(",").map((tag) => tag.trim());
  return [...new Set(tags.filter(Boolean))];
}

// Looks the run up after the request, since the list of runs may have been replaced in between.
async function save(app, key, changes) {
  const notes = await saveNotes(key, changes, app.writeToken);
  const run = app.run(key);
  if (run) run.notes = notes;
}

// Changes the notes of some runs, one after the other, and reports refusals.
export async function changeNotes(app, runs, changes) {
  try {
    for (const run of runs) await save(app, run.key, changes);
  } catch (error) {
    say(error.message);
  }
  app.redraw();
}

export function say(text) {
  const place = document.getElementById("notices");
  const notice = h(".notice", text);
  place.append(notice);
  setTimeout(() => notice.remove(), 8000);
}

// Shows the notes above a run's curves, with a button to edit them.
export function notesLine(app, run) {
  const { tags, note, archived } = run.notes;
  return html`<div class="run-notes">
    ${archived && html`<span class="chip is-warn">archived</span>`}${tagChips(tags)}
    ${note && html`<span class="run-note">${visible(note)}</span>`}
    ${editButton(app, run, tags.length || note ? "" : "Add tags or a note")}
  </div>`;
}

export function editButton(app, run, label = "") {
  if (!app.writeToken) return null;
  return html`<button class="button is-plain edit-notes"
    aria-label=${`Edit tags and note of ${run.key}`} title="Edit tags, note and archive"
    onclick=${() => editNotes(app, run)}>
    ${icon("edit")}${label}
  </button>`;
}

function editNotes(app, run) {
  const { tags, note, archived } = run.notes;
  const known = [...new Set(app.runs.flatMap((one) => one.notes.tags))].sort();
  const tagField = html`<input class="field" id="note-tags" value=${tags.join(", ")}
    placeholder="baseline, paper" autocomplete="off"
  />`;
  const noteField = html`<textarea class="field" id="note-text" rows="4" maxlength="10000" />`;
  noteField.value = note;
  const box = html`<input type="checkbox" id="note-archived" checked=${archived} />`;
  const problem = html`<p class="dialog-problem" role="alert" />`;
  const submit = html`<button class="button is-strong" type="submit">Save</button>`;
  const add = (tag) => {
    tagField.value = splitTags(`${tagField.value},${tag}`).join(", ");
    tagField.focus();
  };
  const onSubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    const changes = {
      tags: splitTags(tagField.value),
      note: noteField.value.trim(),
      archived: box.checked,
    };
    try {
      await save(app, run.key, changes);
      dialog.close();
      app.redraw();
    } catch (error) {
      fill(problem, error.message);
      submit.disabled = false;
    }
  };
  const addTag = (tag) => html`<button class="chip tag" title="Add this tag"
    onclick=${() => add(tag)}>
    ${visible(tag)}
  </button>`;
  const dialog = html`<dialog class="dialog" aria-label=${`Notes on ${run.key}`}
    onclose=${() => dialog.remove()}>
    <form method="dialog" onsubmit=${onSubmit}>
      <h2>${run.key}</h2>
      <label for="note-tags">Tags, separated by commas</label>
      ${tagField}${known.length > 0 && html`<div class="dialog-tags">${known.map(addTag)}</div>`}
      <label for="note-text">Note</label>
      ${noteField}
      <label class="dialog-check" for="note-archived">
        ${box}Archived: hidden unless archived runs are shown
      </label>
      ${problem}
      <div class="dialog-end">
        <span class="faint">Saved as notes.json in the run's folder</span>
        <button class="button" onclick=${() => dialog.close()}>Cancel</button>
        ${submit}
      </div>
    </form>
  </dialog>`;
  document.body.append(dialog);
  dialog.showModal();
}
