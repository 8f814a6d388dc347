// What every page does once it is there.

import { stayTrue } from "./live.js";
import { listen, prepare } from "./roving.js";
import { offerThemes } from "./switch.js";

offerThemes();
listen();
stayTrue();
prepare(document);
document.addEventListener("submit", askFirst);

const schedule = document.getElementById("schedule");
if (schedule) import("./schedule.js").then(({ show }) => show(schedule));

const study = document.getElementById("study");
if (study) {
  import("./study.js").then(({ answerAtOnce }) => answerAtOnce(study));
  document.addEventListener("answered", (event) => prepare(event.target));
}

// What a job is not to be told by mistake is asked about once more: a thumb that scrolls may touch a button.
function askFirst(event) {
  const question = event.target.dataset.question;
  if (question && !confirm(question)) event.preventDefault();
}
