package lanes

// A heap is a binary heap of values by their Orders, the first at the root. It keeps
// the index of each value up to date in *place, by which the value is removed.
// container/heap would cost an interface call for each comparison.
type heap[T any] []entry[T]

type entry[T any] struct {
	Order
	value T
	place *int
}

// push adds v, and keeps its index in *place.
func (h *heap[T]) push(o Order, v T, place *int) {
	*h = append(*h, entry[T]{o, v, place})
	h.up(len(*h) - 1)
}

// remove takes out the value at index i.
func (h *heap[T]) remove(i int) {
	old := *h
	last := len(old) - 1
	moved := old[last]
	old[last] = entry[T]{}
	if *h = old[:last]; i < last {
		h.set(i, moved)
		h.fix(i)
	}
}

// move gives the value at index i the Order o.
func (h heap[T]) move(i int, o Order) {
	h[i].Order = o
	h.fix(i)
}

// filter takes out the values for which out returns true.
func (h *heap[T]) filter(out func(T) bool) {
	all := *h
	left := all[:0]
	for _, e := range all {
		if !out(e.value) {
			left = append(left, e)
			left.set(len(left)-1, e)
		}
	}
	clear(all[len(left):])
	if *h = left; len(left) == 0 {
		*h = nil
	}
	for i := len(left)/2 - 1; i >= 0; i-- {
		left.down(i)
	}
}

func (h heap[T]) set(i int, e entry[T]) {
	h[i] = e
	*e.place = i
}

func (h heap[T]) fix(i int) {
	h.down(i)
	h.up(i)
}

func (h heap[T]) up(i int) {
	e := h[i]
	for i > 0 {
		p := (i - 1) / 2
		if !e.Before(h[p].Order) {
			break
		}
		h.set(i, h[p])
		i = p
	}
	h.set(i, e)
}

func (h heap[T]) down(i int) {
	e := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].Before(h[c].Order) {
			c++
		}
		if !h[c].Before(e.Order) {
			break
		}
		h.set(i, h[c])
		i = c
	}
	h.set(i, e)
}
