package store

import "iter"

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
