'use strict';
(function () {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById('data').textContent);

  // ---- Theme: automatic, light, dark, remembered ----------------------------------------------
  const button = document.getElementById('theme');
  const names = { auto: 'automatic', light: 'light', dark: 'dark' };
  const redraw = [];
  function themeNow() { return root.dataset.theme || 'auto'; }
  function label() {
    button.setAttribute('aria-label', 'Colours: ' + names[themeNow()] + '. Change.');
    button.title = 'Colours: ' + names[themeNow()];
  }
  button.hidden = false;
  label();
  button.addEventListener('click', function () {
    const next = { auto: 'light', light: 'dark', dark: 'auto' }[themeNow()];
    if (next === 'auto') delete root.dataset.theme; else root.dataset.theme = next;
    try { localStorage.setItem('tessera-theme', next); } catch (error) { /* not remembered */ }
    label();
    redraw.forEach(function (draw) { draw(); });
  });
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  if (dark.addEventListener) dark.addEventListener('change', function () { redraw.forEach(function (draw) { draw(); }); });

  // ---- Tables: click a header to sort ---------------------------------------------------------
  document.querySelectorAll('table.sortable').forEach(function (table) {
    const body = table.tBodies[0];
    const original = Array.from(body.rows);
    table.querySelectorAll('thead th').forEach(function (head, column) {
      const inner = document.createElement('button');
      inner.type = 'button';
      inner.textContent = head.textContent;
      head.replaceChildren(inner);
      inner.addEventListener('click', function () {
        const numeric = head.classList.contains('n');
        const first = numeric ? 'descending' : 'ascending';
        const second = numeric ? 'ascending' : 'descending';
        const before = head.getAttribute('aria-sort');
        const order = before === null ? first : before === first ? second : null;
        table.querySelectorAll('thead th').forEach(function (other) { other.removeAttribute('aria-sort'); });
        if (order === null) { body.append.apply(body, original); return; }
        head.setAttribute('aria-sort', order);
        const sign = order === 'ascending' ? 1 : -1;
        const key = function (row) {
          const cell = row.cells[column];
          const number = parseFloat(cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent);
          return numeric ? number : cell.textContent;
        };
        body.append.apply(body, original.slice().sort(function (a, b) {
          const x = key(a), y = key(b);
          if (!numeric) return sign * x.localeCompare(y, 'en', { numeric: true });
          if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y); // absent values last
          return sign * (x - y);
        }));
      });
    });
  });

  // ---- Tables: the edge fades if more columns are to the right -----------------------------------
  document.querySelectorAll('.table .scroll').forEach(function (box) {
    const look = function () { box.classList.toggle('more', box.scrollLeft + box.clientWidth < box.scrollWidth - 2); };
    box.addEventListener('scroll', look, { passive: true });
    window.addEventListener('resize', look);
    look();
  });

  // ---- Commands: copy -------------------------------------------------------------------------
  document.querySelectorAll('.command').forEach(function (block) {
    if (!navigator.clipboard) return;
    const copy = document.createElement('button');
    copy.type = 'button';
    copy.className = 'copy';
    copy.textContent = 'Copy';
    copy.addEventListener('click', function () {
      navigator.clipboard.writeText(block.querySelector('pre').textContent).then(function () {
        copy.textContent = 'Copied';
        setTimeout(function () { copy.textContent = 'Copy'; }, 1500);
      }, function () { copy.textContent = 'Select and copy'; });
    });
    block.append(copy);
  });

  // ---- Charts ---------------------------------------------------------------------------------
  if (typeof Chart === 'undefined') return;
  root.classList.add('charts');
  const css = function (name) { return getComputedStyle(root).getPropertyValue(name).trim(); };
  const short = function (value) {
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e6) return String(value);
    return size !== 0 && (size < 0.01 || size >= 1e6) ? value.toExponential(1) : String(+value.toPrecision(3));
  };
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  Chart.defaults.animation = false;
  Chart.defaults.maintainAspectRatio = false;

  function colorOf(chart, index) {
    const style = chart.series[index].style;
    if (style === 'ceiling') return css('--faint');
    if (style === 'quiet') return css('--series-2');
    let place = 0;
    for (let i = 0; i < index; i++) place += chart.series[i].style === 'solid';
    if (place >= 1 && chart.series.length > 2) place++; // the second colour is for the quiet style
    return css('--series-' + (place % 5 + 1));
  }

  function datasets(chart, labels) {
    return chart.series.map(function (series, index) {
      const color = colorOf(chart, index);
      const ceiling = series.style === 'ceiling';
      if (chart.kind === 'bars') {
        const values = labels.map(function (label) {
          const point = series.points.find(function (p) { return p.label === label; });
          return point ? point.y : null;
        });
        return { label: series.name, data: values, backgroundColor: color, borderRadius: 3, maxBarThickness: 16 };
      }
      return {
        label: series.name, ceiling: ceiling, data: series.points, backgroundColor: color, borderColor: color,
        type: 'line', clip: 12, pointStyle: ceiling ? 'line' : 'circle', showLine: ceiling || chart.kind === 'lines',
        borderWidth: ceiling ? 1.3 : 2, borderDash: ceiling ? [5, 5] : [],
        pointRadius: ceiling ? 0 : chart.kind === 'scatter' ? 4.5 : 3.5,
        pointHoverRadius: ceiling ? 0 : 7, pointHitRadius: ceiling ? 0 : 8, order: ceiling ? 2 : 1
      };
    });
  }

  // The sizes for which the axis has room; powers of two are kept first.
  function ticksApart(values, width) {
    const place = function (value) { return width * Math.log(value / values[0]) / Math.log(values[values.length - 1] / values[0]); };
    const kept = [];
    [true, false].forEach(function (power) {
      values.forEach(function (value) {
        if (Number.isInteger(Math.log2(value)) !== power) return;
        if (kept.every(function (other) { return Math.abs(place(value) - place(other)) >= 34; })) kept.push(value);
      });
    });
    return kept.sort(function (a, b) { return a - b; }).map(function (value) { return { value: value }; });
  }

  // A ceiling's name is drawn on its line if the line is long enough; the legend then leaves it out.
  const named = {}; // for each chart's id the indices of such ceilings, "3,4"
  function namesOf(drawn) {
    const names = [];
    const ctx = drawn.ctx;
    ctx.save();
    ctx.font = '11px ' + Chart.defaults.font.family;
    drawn.data.datasets.forEach(function (set, index) {
      const points = drawn.getDatasetMeta(index).data;
      if (!set.ceiling || points.length < 2 || !drawn.isDatasetVisible(index)) return;
      const a = points[0], b = points[1], width = ctx.measureText(set.label).width;
      if (Math.hypot(b.x - a.x, b.y - a.y) < width + 12) return;
      if (Math.abs(a.y - b.y) >= 1 && drawn.width < 520) return; // slopes are too close together
      names.push({ index: index, a: a, b: b, text: set.label });
    });
    ctx.restore();
    return names;
  }
  const roofs = {
    id: 'roofs',
    afterDatasetsDraw: function (drawn) {
      const ctx = drawn.ctx, names = namesOf(drawn), id = drawn.canvas.dataset.chart;
      const before = named[id] || '', now = names.map(function (name) { return name.index; }).join();
      ctx.save();
      ctx.font = '11px ' + Chart.defaults.font.family;
      ctx.fillStyle = css('--soft');
      ctx.strokeStyle = css('--card');
      ctx.lineWidth = 4;
      ctx.lineJoin = 'round';
      names.forEach(function (name) {
        const flat = Math.abs(name.a.y - name.b.y) < 1;
        ctx.save();
        ctx.textAlign = flat ? 'right' : 'left';
        ctx.translate(flat ? name.b.x : name.a.x, flat ? name.b.y : name.a.y);
        if (!flat) ctx.rotate(Math.atan2(name.b.y - name.a.y, name.b.x - name.a.x));
        ctx.strokeText(name.text, flat ? -4 : 8, -5);
        ctx.fillText(name.text, flat ? -4 : 8, -5);
        ctx.restore();
      });
      ctx.restore();
      if (before === now) return;
      named[id] = now;
      setTimeout(function () { drawn.update('none'); }); // updates the legend
    }
  };
  Chart.register(roofs);

  function axis(title, log, values) {
    const two = log && values && values.length > 1;
    const scale = {
      type: log ? 'logarithmic' : 'linear', beginAtZero: !log,
      title: { display: title !== '', text: title, color: css('--soft') },
      grid: { borderColor: css('--line'), drawTicks: false, color: function (context) {
        return context.tick && context.tick.label === '' ? 'transparent' : css('--line');
      } },
      ticks: { color: css('--soft'), padding: 6, maxRotation: 0, autoSkip: true, callback: function (value) {
        if (!log || two) return short(value);
        return [1, 2, 5].includes(Math.round(value / Math.pow(10, Math.floor(Math.log10(value) + 1e-9)))) ? short(value) : '';
      } }
    };
    if (two) { // tick marks at the measured sizes
      scale.min = values[0];
      scale.max = values[values.length - 1];
      scale.afterBuildTicks = function (built) { built.ticks = ticksApart(values, built.chart.width - 90); };
      scale.ticks.autoSkip = false;
    }
    return scale;
  }

  function options(chart) {
    const bars = chart.kind === 'bars';
    let sizes = null;
    if (chart.kind === 'lines') {
      const all = new Set();
      chart.series.forEach(function (series) { if (series.style !== 'ceiling') series.points.forEach(function (p) { all.add(p.x); }); });
      sizes = Array.from(all).sort(function (a, b) { return a - b; });
    }
    return {
      indexAxis: bars ? 'y' : 'x',
      interaction: { mode: bars ? 'index' : 'nearest', axis: bars ? 'y' : 'xy', intersect: !bars },
      scales: bars
        ? { x: axis(chart.xTitle, false), y: { grid: { display: false, borderColor: css('--line') }, ticks: { color: css('--soft'), autoSkip: false, font: { size: 11 } } } }
        : { x: axis(chart.xTitle, chart.logX, sizes), y: axis(chart.yTitle, chart.logY) },
      plugins: {
        legend: { display: chart.series.length > 1, position: 'bottom', labels: { color: css('--soft'), boxWidth: bars ? 10 : 8, boxHeight: bars ? 10 : 8, usePointStyle: !bars, padding: 14, filter: function (item) { return !(named[chart.id] || '').split(',').includes(String(item.datasetIndex)); } } },
        tooltip: {
          backgroundColor: css('--ink'), titleColor: css('--paper'), bodyColor: css('--paper'), displayColors: false, padding: 10,
          callbacks: bars ? { label: function (item) { return item.dataset.label + ': ' + short(item.parsed.x) + (chart.xTitle ? ' ' + chart.xTitle : ''); } } : {
            title: function (items) { return items.length ? items[0].raw.label || items[0].dataset.label : ''; },
            label: function (item) { return short(item.parsed.y) + ' ' + chart.yTitle + ' at ' + short(item.parsed.x) + ' ' + chart.xTitle; }
          }
        }
      }
    };
  }

  data.charts.forEach(function (chart) {
    const canvas = document.querySelector('canvas[data-chart="' + chart.id + '"]');
    if (canvas === null) return;
    const labels = [];
    if (chart.kind === 'bars') {
      chart.series.forEach(function (series) { series.points.forEach(function (p) { if (!labels.includes(p.label)) labels.push(p.label); }); });
      canvas.parentElement.style.height = Math.max(160, 90 + labels.length * (chart.series.length > 1 ? 34 : 26)) + 'px';
    }
    const config = { type: chart.kind === 'bars' ? 'bar' : 'line', data: { labels: chart.kind === 'bars' ? labels : undefined, datasets: datasets(chart, labels) }, options: options(chart) };
    const drawn = new Chart(canvas, config);
    redraw.push(function () {
      drawn.data.datasets = datasets(chart, labels);
      drawn.options = options(chart);
      drawn.update('none');
    });
  });
})();
