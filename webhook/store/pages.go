package store

import (
	"iter"
	"maps"
)

// Among yields the elements of all whose keys are in only, which has none twice. If only is empty, it
// yields all of them.
func Among[V any](all map[string]V, only []string) iter.Seq2[string, V] {
	if len(only) == 0 {
		return maps.All(all)
	}
	return func(yield func(string, V) bool) {
		for _, key := range only {
			if v, ok := all[key]; ok && !yield(key, v) {
				return
			}
		}
	}
}

// Pages yields the elements of one page after another. It passes its argument from to the first
// call of read, and to each further call the value next that the previous call has returned. If
// next is empty, the sequence ends. If read returns elements and an error, Pages yields the
// elements and then the error, which ends the sequence.
func Pages[T any](from string, read func(from string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for next := from; ; {
			page, after, err := read(next)
			for i := range page {
				if !yield(page[i], nil) {
					return
				}
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if next = after; next == "" {
				return
			}
		}
	}
}

// Page is Pages for a list that has only one page.
func Page[T any](read func() ([]T, error)) iter.Seq2[T, error] {
	return Pages("", func(string) ([]T, string, error) {
		all, err := read()
		return all, "", err
	})
}
