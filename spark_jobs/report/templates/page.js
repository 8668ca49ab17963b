(function () {
  "use strict";
  var form = document.getElementById("filters");
  if (!form) { return; }
  var samples = Array.prototype.slice.call(document.querySelectorAll(".sample"));
  var find = document.getElementById("find");
  var found = document.getElementById("found");
  var choices = Array.prototype.slice.call(form.querySelectorAll("select"));
  var texts = samples.map(function (sample) { return sample.textContent.toLowerCase(); });

  function offer(select) {
    samples.map(function (sample) { return sample.dataset[select.dataset.by]; })
      .filter(function (name, at, all) { return all.indexOf(name) === at; })
      .sort()
      .forEach(function (name) { select.add(new Option(name, name)); });
  }

  function chosen(sample) {
    return choices.every(function (select) {
      return !select.selectedIndex || sample.dataset[select.dataset.by] === select.value;
    });
  }

  function filter() {
    var wanted = find.value.trim().toLowerCase();
    var shown = 0;
    samples.forEach(function (sample, at) {
      var fits = chosen(sample) && texts[at].indexOf(wanted) >= 0;
      sample.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    document.querySelectorAll(".stratum, .more").forEach(function (fold) {
      fold.hidden = !fold.querySelector(".sample:not([hidden])");
      if (fold.classList.contains("more")) { fold.open = shown < samples.length; }
    });
    found.textContent = shown + " of " + samples.length + (shown ? "" : ": not among the samples; the verdicts directory has every event");
  }

  function offerCopy(sample) {
    if (!sample.open || sample.querySelector("button") || !navigator.clipboard) { return; }
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy message id";
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(sample.dataset.id).then(function () { button.textContent = "Copied"; });
    });
    sample.insertBefore(button, sample.children[1]);
  }

  function openLinked() {
    var hash = location.hash;
    try { hash = decodeURIComponent(hash); } catch (ignored) { return; }
    var id = hash.indexOf("#msg=") === 0 ? hash.slice(5) : null;
    var target = samples.filter(function (sample) { return id ? sample.dataset.id === id : "#" + sample.id === hash; })[0];
    if (!target) { return; }
    if (target.hidden) { form.reset(); filter(); }
    target.open = true;
    if (target.closest(".more")) { target.closest(".more").open = true; }
    target.scrollIntoView();
  }

  var first = {};
  samples.forEach(function (sample) {
    sample.addEventListener("toggle", function () { offerCopy(sample); });
    if (!first[sample.dataset.id]) {
      first[sample.dataset.id] = true;
      sample.querySelector(".here").href = "#msg=" + encodeURIComponent(sample.dataset.id);
    }
  });
  choices.forEach(offer);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  form.addEventListener("reset", function () { setTimeout(filter); });
  form.addEventListener("input", filter);
  window.addEventListener("hashchange", openLinked);
  document.querySelector("nav").addEventListener("click", function (event) {
    if (event.target.hash) { event.currentTarget.firstElementChild.open = false; }
  });
  form.hidden = false;
  filter();
  openLinked();
})();
