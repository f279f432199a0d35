package main

import "github.com/mattn/go-runewidth"

// narrow counts ambiguous characters as one column.
var narrow = &runewidth.Condition{}

// columns is how many columns of a terminal a clean text takes.
func columns(text string) int { return narrow.StringWidth(text) }

// shorten cuts text to a number of columns.
func shorten(text string, most int) string { return narrow.Truncate(text, most, "…") }
