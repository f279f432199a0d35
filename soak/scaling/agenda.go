package main

// An agenda is a heap of deliveries with the earliest at the top.
type agenda []delivery

func (a *agenda) push(d delivery) {
	*a = append(*a, d)
	h := *a
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].at <= h[i].at {
			return
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
}

func (a *agenda) pop() delivery {
	h := *a
	d, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	*a = h
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return d
		}
		if down+1 < n && h[down+1].at < h[down].at {
			down++
		}
		if h[i].at <= h[down].at {
			return d
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}
