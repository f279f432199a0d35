// Package pages makes iterators for stores, which read one page after another, each
// under their lock or in a transaction of its own. Neither is held while an element
// is yielded, so the loop may call the store.
package pages

import "iter"

// All yields the elements of one page after another, the first of which begins
// at from. Read returns a page and where the next one begins; that is empty after
// the last. An error is yielded after the elements that were returned with it,
// and ends it.
func All[T any, P ~string | ~[]byte](from P, read func(from P) (page []T, next P, err error)) iter.Seq2[T, error] {
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
			if len(after) == 0 {
				return
			}
			next = after
		}
	}
}

// One is All for a list that is a single page.
func One[T any](read func() ([]T, error)) iter.Seq2[T, error] {
	return All("", func(string) ([]T, string, error) {
		all, err := read()
		return all, "", err
	})
}
