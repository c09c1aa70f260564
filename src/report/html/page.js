
'use strict';
(() => {
  // Names in the data are foreign input. They reach the page as text only: no markup is ever built from them.
  const data = JSON.parse(document.getElementById('data').textContent);
  const at = (id) => document.getElementById(id);
  const make = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const SVG = 'http://www.w3.org/2000/svg';
  const draw = (tag, values) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
    return made;
  };
  const number = (cell) => { cell.classList.add('n'); return cell; };

  const bytes = (size) => {
    if (size < 1024) return size === 1 ? '1 byte' : size + ' bytes';
    let unit = -1;
    do { size /= 1024; unit++; } while (size >= 1023.5 && unit < 5);
    return size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0) + ' ' + ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'][unit];
  };
  const age = (s) => s < 1 ? (s * 1000).toFixed(0) + ' ms' : s < 120 ? s.toFixed(1) + ' s'
    : s < 7200 ? (s / 60).toFixed(0) + ' min' : s < 172800 ? (s / 3600).toFixed(1) + ' h' : (s / 86400).toFixed(1) + ' days';
  const GROWTH = { growing: 'growing', steady: 'steady', one_off: 'one-off' };
  const growth = (e) => !e.growth ? '' : (GROWTH[e.growth[0]] || '') + (e.growth[0] === 'growing' ? ', ' + bytes(e.growth[1]) + ' a minute' : '');
  // What grows first, the fastest of it first.
  const rank = (e) => !e.growth ? -2 : e.growth[0] === 'growing' ? e.growth[1] : e.growth[0] === 'steady' ? 0 : -1;
  const plural = (count, noun) => count + ' ' + noun + (count === 1 ? '' : 's');
  const label = (frame) => data.frames[frame][0];
  const place = (frame) => data.frames[frame][1];
  const where = (entry) => entry.stack.length ? label(entry.stack[0]) : 'no call stack was kept';

  const severalProcesses = data.processes.length > 1;
  const severalDevices = data.entries.some((entry) => entry.device !== data.entries[0].device);
  const STATES = ['leak', 'suppressed', 'held by the driver'];

  // ---- sums

  const sums = (id, rows) => {
    const body = at(id);
    if (!rows.length) { body.closest('section').hidden = true; return; }
    for (const [name, size, count, stacks] of rows) {
      const row = body.appendChild(make('tr'));
      row.append(number(make('td', bytes(size))), number(make('td', String(count))), number(make('td', String(stacks))),
        make('td', name));
    }
  };
  sums('libraries', data.libraries);
  sums('suppressed', data.suppressed);
  for (const process of data.processes) {
    const row = at('processes').appendChild(make('tr'));
    row.append(number(make('td', String(process.pid))), make('td', process.state), number(make('td', bytes(process.leaked))),
      number(make('td', String(process.denied))), make('td', process.command, 'w'), make('td', process.labels, 'w'));
  }

  // ---- which entries are looked at

  const shown = [true, false, false];
  let words = '';
  const texts = data.entries.map((entry) => [entry.api, data.names[entry.library], entry.pattern || '', growth(entry),
    ...entry.stack.map((frame) => label(frame) + ' ' + place(frame))].join('\n').toLowerCase());
  const chosen = () => data.entries.filter((entry, index) => shown[entry.state] && texts[index].includes(words));

  // ---- the table of call stacks

  const columns = [
    ['Bytes', true, (e) => e.bytes, (e) => bytes(e.bytes)],
    ['Allocations', true, (e) => e.count, (e) => String(e.count)],
    ['Oldest', true, (e) => e.age, (e) => age(e.age)],
    ['Growth', true, rank, growth],
    ['Library', false, (e) => data.names[e.library]],
    ['Call', false, (e) => e.api],
    ['Where', false, where],
  ];
  if (severalDevices) columns.push(['GPU', true, (e) => e.device, (e) => String(e.device)]);
  if (severalProcesses) columns.push(['Process', true, (e) => data.processes[e.process].pid]);
  columns.push(['', false, (e) => e.state === 0 ? '' : e.pattern || STATES[e.state]]);
  const PAGE = 100;
  let [sortedBy, falling, rows] = [0, true, PAGE];

  const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  const table = () => {
    const head = at('head');
    head.replaceChildren(...columns.map(([title, numeric], index) => {
      const cell = make('th', undefined, numeric ? 'n' : '');
      cell.scope = 'col';
      const button = cell.appendChild(make('button', title + (index === sortedBy ? (falling ? ' ▾' : ' ▴') : '')));
      button.type = 'button';
      cell.setAttribute('aria-sort', index !== sortedBy ? 'none' : falling ? 'descending' : 'ascending');
      button.addEventListener('click', () => {
        falling = index === sortedBy ? !falling : numeric;
        sortedBy = index;
        table();
        at('head').children[index].firstChild.focus();
      });
      return cell;
    }));
    const key = columns[sortedBy][2];
    const list = chosen().sort((a, b) => (falling ? -1 : 1) * compare(key(a), key(b)));
    at('stacks').replaceChildren(...list.slice(0, rows).flatMap(tableRow));
    const more = at('more');
    more.hidden = list.length <= rows;
    more.textContent = 'Show ' + Math.min(PAGE, list.length - rows) + ' more of ' + list.length;
    const sum = list.reduce((all, entry) => all + entry.bytes, 0);
    at('sum').textContent = bytes(sum) + ' from ' + plural(list.length, 'call stack');
  };
  const tableRow = (entry) => {
    const row = make('tr');
    const detail = make('tr');
    detail.hidden = true;
    columns.forEach(([title, numeric, key, text]) => {
      const cell = row.appendChild(make('td', undefined, numeric ? 'n' : ''));
      const content = (text || key)(entry);
      if (title !== 'Where') { cell.textContent = content; return; }
      cell.className = 'w';
      const button = cell.appendChild(make('button', content));
      button.type = 'button';
      button.setAttribute('aria-expanded', 'false');
      button.addEventListener('click', () => {
        if (!detail.firstChild) detail.append(stackCell(entry));
        detail.hidden = !detail.hidden;
        button.setAttribute('aria-expanded', String(!detail.hidden));
      });
    });
    return [row, detail];
  };
  const stackCell = (entry) => {
    const cell = make('td', undefined, 'w');
    cell.colSpan = columns.length;
    const list = cell.appendChild(make('ol', undefined, 'stack'));
    for (const frame of entry.stack) {
      const item = list.appendChild(make('li', label(frame) + '  '));
      item.append(make('span', place(frame), 'faint'));
    }
    if (entry.course) cell.append(course(entry));
    if (entry.more) cell.append(make('p', plural(entry.more, 'more frame'), 'faint'));
    return cell;
  };
  // Live bytes of one call stack from the first sample to the end.
  const course = (entry) => {
    const { times: samples, end } = data.processes[entry.process];
    const times = [...samples, end];
    const values = [...entry.course, entry.bytes];
    const [width, height, top] = [560, 90, Math.max(...values, 1)];
    const [from, to] = [times[0], Math.max(times[times.length - 1], times[0] + 0.001)];
    const points = values.map((value, i) =>
      ((times[i] - from) / (to - from) * width).toFixed(1) + ',' + (height - value / top * (height - 4)).toFixed(1));
    const told = 'live bytes from ' + age(from) + ' to ' + age(to) + ' after the start, highest ' + bytes(Math.max(...values));
    const svg = draw('svg', { viewBox: '0 0 ' + width + ' ' + height, width, height, class: 'course', role: 'img', 'aria-label': told });
    svg.append(draw('polyline', { points: points.join(' ') }));
    const figure = make('figure');
    figure.append(svg, make('figcaption', told, 'faint'));
    return figure;
  };
  at('more').addEventListener('click', () => { rows += PAGE; table(); });

  // ---- the flame graph

  const node = (name, above) => ({ name, above, value: 0, count: 0, below: new Map() });
  let top = node('all', null);
  let zoomed = top;
  const grow = () => {
    top = node('all', null);
    for (const entry of chosen()) {
      const path = [data.processes[entry.process].program];
      if (severalDevices) path.push('GPU ' + entry.device);
      if (entry.state > 0) path.push('[' + STATES[entry.state] + ']');
      for (let i = entry.stack.length - 1; i >= 0; i--) path.push(label(entry.stack[i]));
      path.push(entry.api);
      let here = top;
      for (const name of ['', ...path]) {
        if (name !== '') {
          if (!here.below.has(name)) here.below.set(name, node(name, here));
          here = here.below.get(name);
        }
        here.value += entry.bytes;
        here.count += entry.count;
      }
    }
    zoomed = top;
  };
  const ROW = 19;
  const colour = (name) => {
    let sum = 0;
    for (let i = 0; i < name.length; i++) sum = (sum * 31 + name.charCodeAt(i)) >>> 0;
    return 'c' + sum % 8;
  };
  const flame = () => {
    const room = at('flame');
    const width = Math.max(room.clientWidth || 0, 320);
    const boxes = [];
    const above = [];
    for (let one = zoomed.above; one; one = one.above) above.unshift(one);
    above.forEach((one, depth) => boxes.push([one, 0, width, depth, true]));
    // A list and no recursion: what is deep would not fit the stack of this script.
    const open = [[zoomed, 0, width, above.length]];
    let deepest = 0;
    while (open.length) {
      const [one, x, w, depth] = open.pop();
      boxes.push([one, x, w, depth, false]);
      deepest = Math.max(deepest, depth);
      let left = x;
      const below = [...one.below.values()].sort((a, b) => b.value - a.value || compare(a.name, b.name));
      for (const child of below) {
        const part = one.value ? w * child.value / one.value : 0;
        // Narrower than this nobody sees it; it is in the table.
        if (part >= 0.4) open.push([child, left, part, depth + 1]);
        left += part;
      }
    }
    const svg = draw('svg', { viewBox: '0 0 ' + width + ' ' + (deepest + 1) * ROW, height: (deepest + 1) * ROW,
      role: 'group', 'aria-label': 'Flame graph of live bytes, outermost frame on top' });
    for (const [one, x, w, depth, isAbove] of boxes) {
      const told = one.name + ': ' + bytes(one.value) + ' in ' + plural(one.count, 'allocation')
        + (top.value ? ', ' + (100 * one.value / top.value).toFixed(1) + ' %' : '');
      const group = svg.appendChild(draw('g', { tabindex: 0, role: 'button', 'aria-label': told }));
      if (isAbove) group.setAttribute('class', 'above');
      group.appendChild(draw('title', {})).textContent = told;
      group.append(draw('rect', { x, y: depth * ROW, width: w, height: ROW - 1, class: colour(one.name) }));
      const letters = Math.floor((w - 6) / 7.3);
      if (letters >= 3) {
        const text = group.appendChild(draw('text', { x: x + 3, y: depth * ROW + 13 }));
        text.textContent = one.name.length <= letters ? one.name : one.name.slice(0, letters - 1) + '…';
      }
      const zoom = () => { zoomed = one; flame(); };
      const tell = () => { at('told').textContent = told; };
      group.addEventListener('click', zoom);
      group.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); zoom(); } });
      group.addEventListener('mouseenter', tell);
      group.addEventListener('focus', tell);
    }
    room.replaceChildren(svg);
  };

  // ---- controls

  const refresh = () => { rows = PAGE; table(); grow(); flame(); };
  at('filter').addEventListener('input', (event) => { words = event.target.value.toLowerCase(); refresh(); });
  STATES.forEach((name, state) => {
    const any = data.entries.some((entry) => entry.state === state);
    // Where nothing is leaked, what there is is of interest.
    if (state > 0 && any && !data.entries.some((entry) => entry.state === 0)) shown[state] = true;
    if (!any) return;
    const box = make('input');
    box.type = 'checkbox';
    box.checked = shown[state];
    box.addEventListener('change', () => { shown[state] = box.checked; refresh(); });
    const text = make('label');
    text.append(box, ' ' + ['leaks', 'suppressed', 'held by the driver'][state]);
    at('states').append(text);
  });
  let waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(flame, 100); });
  refresh();
})();
