// What if: every click asks at once, and again until there is an answer; the address always names the question that is answered.

const DELAY_MILLISECONDS = 200;
const ANSWER_MILLISECONDS = 60000;
const AGAIN_MILLISECONDS = 2000;
const UNAVAILABLE = 503;

export function answerAtOnce(form) {
  let timer = 0;
  let asking = new AbortController();
  const ask = () => {
    if (!form.reportValidity()) return;
    asking.abort();
    asking = new AbortController();
    clearTimeout(timer);
    timer = setTimeout(answer, DELAY_MILLISECONDS, addressOf(form), asking.signal);
  };
  form.addEventListener("change", ask);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
    bringIntoView(document.getElementById("reply"));
  });
  if (isAnotherQuestion(form)) ask();
}

// On a narrow screen the answer begins below what is seen, and the button would seem to do nothing.
function bringIntoView(reply) {
  if (reply.getBoundingClientRect().top > innerHeight / 2) reply.scrollIntoView();
}

// Clicked before this script was here, or kept by the browser from an earlier visit.
function isAnotherQuestion(form) {
  return [...form.querySelectorAll("input")].some((field) => field.checked !== field.defaultChecked || field.value !== field.defaultValue);
}

function addressOf(form) {
  const query = new URLSearchParams(new FormData(form));
  const isEmpty = ["fail", "slow", "join", "fail_host"].every((name) => !query.has(name));
  return isEmpty ? form.action : `${form.action}?${query}`;
}

async function answer(url, signal) {
  if (signal.aborted) return;
  const reply = document.getElementById("reply");
  reply.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(url, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]) });
    if (response.redirected) return location.assign(response.url);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("reply") ?? page.querySelector(".empty");
    reply.replaceChildren(...found.childNodes);
    if (response.ok) history.replaceState(null, "", url);
    if (response.status === UNAVAILABLE) setTimeout(answer, AGAIN_MILLISECONDS, url, signal);
    reply.dispatchEvent(new Event("answered", { bubbles: true }));
  } catch {
    if (signal.aborted) return;
    reply.replaceChildren("The service does not answer; it is asked again until it does.");
    setTimeout(answer, AGAIN_MILLISECONDS, url, signal);
  } finally {
    if (!signal.aborted) reply.removeAttribute("aria-busy");
  }
}
