package main

import (
	"fmt"
	"strings"
	"time"
)

// A meter prints at most once per meterRedraw on a terminal, and at most once per meterLine
// elsewhere.
const (
	meterRedraw = 100 * time.Millisecond
	meterLine   = 5 * time.Second
)

// A meter shows the progress of long work: as a bar on a terminal, elsewhere as a line every few
// seconds. If the work ends before the first line is due, the meter prints nothing.
type meter struct {
	screen
	verb string // such as "replayed"
	// amount formats how many items are done, and how many are done per second.
	amount func(float64) string
	begin  time.Time
	shown  time.Time
	drawn  bool
}

func newMeter(s screen, verb string) *meter {
	now := time.Now()
	return &meter{screen: s, verb: verb, amount: rate, begin: now, shown: now}
}

// show displays the progress. If total is 0, the total is unknown, and the argument fraction says
// which part of the work is done, from 0 to 1. It is negative if that is unknown, too.
func (m *meter) show(done, total int64, fraction float64) {
	now, every := time.Now(), meterLine
	if m.terminal {
		every = meterRedraw
	}
	if now.Sub(m.shown) < every {
		return
	}
	m.shown = now
	text := m.verb + " " + m.amount(float64(done))
	if total > 0 {
		text += " of " + m.amount(float64(total))
		fraction = float64(done) / float64(total)
	}
	took := now.Sub(m.begin)
	text += ", " + m.amount(float64(done)/took.Seconds()) + "/s"
	if fraction > 0 && fraction <= 1 && took > 2*time.Second {
		text += ", " + spell(time.Duration(float64(took)*(1/fraction-1))) + " left"
	}
	if !m.terminal {
		fmt.Fprintln(m, text)
		return
	}
	if fraction >= 0 {
		text = bar(fraction) + " " + text
	}
	if m.width > 0 {
		text = shorten(text, m.width-1) // a text in the last column would begin a new line
	}
	fmt.Fprintf(m, "\r\x1b[K%s", text)
	m.drawn = true
}

func (m *meter) end() {
	if m.drawn {
		fmt.Fprint(m, "\r\x1b[K")
		m.drawn = false
	}
}

func bar(fraction float64) string {
	const width = 20
	fraction = min(max(fraction, 0), 1)
	full := int(fraction * width)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), int(fraction*100))
}
