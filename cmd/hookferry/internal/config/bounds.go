package config

import (
	"bytes"
	"fmt"

	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// The YAML package takes time that grows with the square of each of these, or
// memory for each level that grows with all those above. No file of settings
// comes near, and one that does is refused before it is taken apart.
const (
	maxDepth     = 64    // levels of lists and mappings
	maxKeys      = 1_000 // of one mapping
	maxMissing   = 1_000 // values that are not there
	maxDocuments = 64
	maxBlank     = 1_000 // empty lines in a row
)

// An excess is what a file has too much of, and where that is.
type excess struct {
	place
	text string
}

func (e *excess) Error() string { return e.text }

func tooMuch(at place, format string, args ...any) error {
	return &excess{at, fmt.Sprintf(format, args...)}
}

// tokens takes a text apart into tokens, as many as the parser may have.
func tokens(text []byte) (token.Tokens, error) {
	blank, line := 0, 0
	for l := range bytes.Lines(text) {
		line++
		if len(bytes.TrimSpace(l)) > 0 {
			blank = 0
		} else if blank++; blank > maxBlank {
			return nil, tooMuch(place{line, 1}, "has more than %d empty lines in a row", maxBlank)
		}
	}
	all := lexer.Tokenize(string(text))
	var o outline
	for _, t := range all {
		if t.Type == token.CommentType {
			continue
		}
		if err := o.next(t); err != nil {
			return nil, err
		}
		o.last = t
	}
	return all, nil
}

// An outline follows the structure of a text by its tokens, as far as the
// bounds need it.
type outline struct {
	open      []level
	last      *token.Token
	missing   int
	documents int
}

// A level is a list or a mapping that has begun.
type level struct {
	flow   bool // in brackets or braces, not by columns
	braces bool
	column int // of its keys or dashes, unless flow
	keys   int
	colon  bool // there was one since the last comma
}

func (o *outline) next(t *token.Token) error {
	var top *level
	if n := len(o.open); n > 0 {
		top = &o.open[n-1]
	}
	if o.lacks(top, t) {
		if o.missing++; o.missing > maxMissing {
			return tooMuch(placeOf(t), "lacks more than %d values", maxMissing)
		}
	}
	inFlow := top != nil && top.flow
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		return o.push(level{flow: true, braces: t.Type == token.MappingStartType}, t)
	case token.SequenceEndType, token.MappingEndType:
		if inFlow {
			o.open = o.open[:len(o.open)-1]
		}
	case token.CollectEntryType:
		if inFlow {
			top.colon = false
		}
	case token.SequenceEntryType:
		if !inFlow {
			return o.enter(t)
		}
	case token.MappingValueType:
		if !inFlow {
			key := t
			if o.last != nil && o.last.Position.Line == t.Position.Line {
				key = o.last
			}
			if err := o.enter(key); err != nil {
				return err
			}
			top = &o.open[len(o.open)-1]
		}
		top.colon = true
		if top.keys++; top.keys > maxKeys {
			return tooMuch(placeOf(t), "has more than %d keys in one place", maxKeys)
		}
	case token.DocumentHeaderType, token.DocumentEndType:
		o.open = nil
		if o.documents++; o.documents > maxDocuments {
			return tooMuch(placeOf(t), "has more than one document")
		}
	}
	return nil
}

// enter goes to the level that is not in brackets and has t's column.
func (o *outline) enter(t *token.Token) error {
	column := t.Position.Column
	for n := len(o.open); n > 0 && !o.open[n-1].flow && o.open[n-1].column >= column; n = len(o.open) {
		if o.open[n-1].column == column {
			return nil
		}
		o.open = o.open[:n-1]
	}
	return o.push(level{column: column}, t)
}

func (o *outline) push(l level, t *token.Token) error {
	if len(o.open) == maxDepth {
		return tooMuch(placeOf(t), "is nested more than %d levels deep", maxDepth)
	}
	o.open = append(o.open, l)
	return nil
}

// lacks reports whether t stands where a value is missing. A key with a
// question mark counts as one: nobody writes them.
func (o *outline) lacks(top *level, t *token.Token) bool {
	if t.Type == token.MappingKeyType {
		return true
	}
	if o.last == nil || top == nil {
		return false
	}
	ends := t.Type == token.CollectEntryType || t.Type == token.MappingEndType || t.Type == token.SequenceEndType
	dash := t.Type == token.SequenceEntryType
	switch o.last.Type {
	case token.MappingValueType:
		if top.flow {
			return ends
		}
		return t.Position.Line != o.last.Position.Line && (t.Position.Column < top.column || t.Position.Column == top.column && !dash)
	case token.SequenceEntryType:
		return t.Position.Line != o.last.Position.Line && t.Position.Column <= o.last.Position.Column
	case token.CollectEntryType, token.MappingStartType, token.SequenceStartType:
		return false
	}
	return top.braces && !top.colon && (t.Type == token.CollectEntryType || t.Type == token.MappingEndType)
}
