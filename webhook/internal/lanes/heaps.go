package lanes

// The three heaps are written out: each keeps the position in what it holds, and
// container/heap would cost an interface call for each comparison.

func (l *Lane) pushRest(it *Item) {
	it.state = inRest
	it.pos = len(l.rest)
	l.rest = append(l.rest, it)
	l.restUp(it.pos)
}

func (l *Lane) removeRest(i int) {
	last := len(l.rest) - 1
	l.rest[i] = l.rest[last]
	l.rest[i].pos = i
	l.rest[last] = nil
	l.rest = l.rest[:last]
	if i < last {
		l.restDown(i)
		l.restUp(i)
	} else if last == 0 && cap(l.rest) > 64 {
		l.rest = nil
	}
}

// filterRest takes out the items for which out returns true.
func (l *Lane) filterRest(out func(*Item) bool) {
	all := l.rest
	l.rest = l.rest[:0]
	for _, it := range all {
		if !out(it) {
			it.pos = len(l.rest)
			l.rest = append(l.rest, it)
		}
	}
	clear(all[len(l.rest):])
	if len(l.rest) == 0 {
		l.rest = nil
	}
	for i := len(l.rest)/2 - 1; i >= 0; i-- {
		l.restDown(i)
	}
}

func (l *Lane) restUp(i int) {
	h, it := l.rest, l.rest[i]
	for i > 0 {
		p := (i - 1) / 2
		if !it.Before(h[p].Order) {
			break
		}
		h[i] = h[p]
		h[i].pos = i
		i = p
	}
	h[i] = it
	it.pos = i
}

func (l *Lane) restDown(i int) {
	h, it := l.rest, l.rest[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].Before(h[c].Order) {
			c++
		}
		if !h[c].Before(it.Order) {
			break
		}
		h[i] = h[c]
		h[i].pos = i
		i = c
	}
	h[i] = it
	it.pos = i
}

func (t *Table) leaseUp(i int) {
	h, it := t.leases, t.leases[i]
	for i > 0 {
		p := (i - 1) / 2
		if it.until >= h[p].until {
			break
		}
		h[i] = h[p]
		h[i].pos = i
		i = p
	}
	h[i] = it
	it.pos = i
}

func (t *Table) leaseDown(i int) {
	h, it := t.leases, t.leases[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].until < h[c].until {
			c++
		}
		if h[c].until >= it.until {
			break
		}
		h[i] = h[c]
		h[i].pos = i
		i = c
	}
	h[i] = it
	it.pos = i
}

func (t *Table) removeLater(l *Lane) {
	i, last := l.pos, len(t.later)-1
	t.later[i] = t.later[last]
	t.later[i].pos = i
	t.later[last] = nil
	t.later = t.later[:last]
	if i < last {
		t.laterDown(i)
		t.laterUp(i)
	}
}

func (t *Table) laterUp(i int) {
	h, l := t.later, t.later[i]
	first := l.first()
	for i > 0 {
		p := (i - 1) / 2
		if !first.Before(h[p].first()) {
			break
		}
		h[i] = h[p]
		h[i].pos = i
		i = p
	}
	h[i] = l
	l.pos = i
}

func (t *Table) laterDown(i int) {
	h, l := t.later, t.later[i]
	first := l.first()
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].first().Before(h[c].first()) {
			c++
		}
		if !h[c].first().Before(first) {
			break
		}
		h[i] = h[c]
		h[i].pos = i
		i = c
	}
	h[i] = l
	l.pos = i
}
