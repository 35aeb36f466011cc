// Sets the remembered theme before the first paint, so that the page does not flash.
try {
  var remembered = localStorage.getItem('tessera-theme');
  var asked = /^#(dark|light)$/.exec(location.hash);
  if (asked) remembered = asked[1];
  if (remembered === 'dark' || remembered === 'light') document.documentElement.dataset.theme = remembered;
  else if (remembered === 'auto') delete document.documentElement.dataset.theme;
} catch (error) { /* the browser may refuse storage to local files */ }
document.documentElement.classList.add('script');
