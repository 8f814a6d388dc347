// What if: every click asks at once; the address always names the question that is answered.

const DELAY_MILLISECONDS = 200;
const ANSWER_MILLISECONDS = 60000;

export function answerAtOnce(form) {
  let timer = 0;
  let asking = new AbortController();
  const ask = () => {
    if (!form.reportValidity()) return;
    asking.abort();
    asking = new AbortController();
    clearTimeout(timer);
    timer = setTimeout(answer, DELAY_MILLISECONDS, form, asking.signal);
  };
  form.addEventListener("change", ask);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
}

async function answer(form, signal) {
  const reply = document.getElementById("reply");
  const query = new URLSearchParams(new FormData(form));
  const isEmpty = ["fail", "slow", "join", "fail_host"].every((name) => !query.has(name));
  const url = isEmpty ? form.action : `${form.action}?${query}`;
  reply.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(url, { signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MILLISECONDS)]) });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("reply") ?? page.querySelector(".empty");
    reply.replaceChildren(...found.childNodes);
    if (response.ok) history.replaceState(null, "", url);
    reply.dispatchEvent(new Event("answered", { bubbles: true }));
  } catch (error) {
    if (error.name !== "AbortError") reply.replaceChildren("The service does not answer; try again.");
  } finally {
    if (!signal.aborted) reply.removeAttribute("aria-busy");
  }
}
