package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPagesYieldsElementsUntilError(t *testing.T) {
	broken := errors.New("broken")
	type page struct {
		elements []int
		next     string
		err      error
	}
	for _, tt := range []struct {
		name  string
		pages map[string]page
		most  int // the loop ends after so many; 0: at the end
		want  []string
	}{
		{"no elements", map[string]page{"a": {}}, 0, nil},
		{"one page", map[string]page{"a": {elements: []int{1, 2}}}, 0, []string{"1", "2"}},
		{"three pages, one of them empty", map[string]page{"a": {[]int{1}, "b", nil}, "b": {nil, "c", nil}, "c": {[]int{2}, "", nil}}, 0, []string{"1", "2"}},
		{"an error and no elements", map[string]page{"a": {err: broken}}, 0, []string{"broken"}},
		{"an error after elements, although another page follows", map[string]page{"a": {[]int{1}, "b", nil}, "b": {[]int{2}, "a", broken}}, 0, []string{"1", "2", "broken"}},
		{"the loop ends in the middle of a page", map[string]page{"a": {[]int{1, 2}, "b", broken}}, 1, []string{"1"}},
		{"the loop ends at the error", map[string]page{"a": {[]int{1}, "b", broken}}, 2, []string{"1", "broken"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := Pages("a", func(from string) ([]int, string, error) {
				p, ok := tt.pages[from]
				if !ok {
					t.Errorf("read a page from %q, want only the pages of the list", from)
				}
				return p.elements, p.next, p.err
			})
			for range 2 { // the list may be read again
				var got []string
				for n, err := range all {
					if err != nil {
						got = append(got, err.Error())
					} else {
						got = append(got, fmt.Sprint(n))
					}
					if len(got) == tt.most {
						break
					}
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

func TestPageYieldsElementsThenError(t *testing.T) {
	broken := errors.New("broken")
	var got []string
	for s, err := range Page(func() ([]string, error) { return []string{"a", "b"}, broken }) {
		got = append(got, fmt.Sprint(s, err))
	}
	if diff := cmp.Diff([]string{"a<nil>", "b<nil>", "broken"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
