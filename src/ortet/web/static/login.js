// A browser that comes from another site keeps its cookie to itself: ask again from here.
const me = await fetch("/me", { headers: { accept: "application/json" } });
if (me.ok) {
  const back = document.querySelector("input[name=next]").value;
  location.replace(back);
}
