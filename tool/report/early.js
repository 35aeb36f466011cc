// Before the first paint: the remembered theme, so that the page does not flash.
try {
  var remembered = localStorage.getItem('tessera-theme');
  var asked = /^#(dark|light)$/.exec(location.hash);
  if (asked) remembered = asked[1];
  if (remembered === 'dark' || remembered === 'light') document.documentElement.dataset.theme = remembered;
  else if (remembered === 'auto') delete document.documentElement.dataset.theme;
} catch (error) { /* storage may be closed to local files */ }
document.documentElement.classList.add('script');
