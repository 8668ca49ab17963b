(function () {
  "use strict";
  var form = document.getElementById("filters");
  if (!form) { return; }
  var samples = Array.prototype.slice.call(document.querySelectorAll(".sample"));
  var find = document.getElementById("find");
  var status = document.getElementById("by-status");
  var found = document.getElementById("found");
  var texts = samples.map(function (sample) { return sample.textContent.toLowerCase(); });

  samples.map(function (sample) { return sample.dataset.status; })
    .filter(function (name, at, all) { return all.indexOf(name) === at; })
    .forEach(function (name) { status.add(new Option(name, name)); });

  function filter() {
    var wanted = find.value.trim().toLowerCase();
    var shown = 0;
    samples.forEach(function (sample, at) {
      var fits = (!status.value || sample.dataset.status === status.value) && texts[at].indexOf(wanted) >= 0;
      sample.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    document.querySelectorAll(".stratum").forEach(function (stratum) {
      stratum.hidden = !stratum.querySelector(".sample:not([hidden])");
    });
    found.textContent = shown + " of " + samples.length;
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
    if (target) { target.open = true; target.scrollIntoView(); }
  }

  samples.forEach(function (sample) { sample.addEventListener("toggle", function () { offerCopy(sample); }); });
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  find.addEventListener("input", filter);
  status.addEventListener("change", filter);
  window.addEventListener("hashchange", openLinked);
  form.hidden = false;
  filter();
  openLinked();
})();
