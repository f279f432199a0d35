package main

import (
	"unicode"

	"golang.org/x/text/width"
)

// columns is how many columns of a terminal a clean text takes. Characters of
// East Asian scripts and emoji take two, marks that combine with the character
// before them none (Unicode Standard Annex #11).
func columns(text string) int {
	n := 0
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	if r < 0x300 { // the first mark
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// shorten cuts text to a number of columns. A mark stays with its character.
func shorten(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	used, end := 0, 0
	for i, r := range text {
		if used += columnsOf(r); used > max(most-1, 0) {
			end = i
			break
		}
	}
	return text[:end] + "…"
}
