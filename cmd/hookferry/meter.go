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
	verb   string               // such as "replayed"
	amount func(float64) string // formats how many items are done, and how many are done per second
	part   func() float64       // the fraction of work whose total is unknown; nil if that is unknown, too
	begin  time.Time
	shown  time.Time
}

func newMeter(s screen, verb string) *meter {
	now := time.Now()
	return &meter{screen: s, verb: verb, amount: rate, begin: now, shown: now}
}

// show displays the progress. If total is 0, the total is unknown.
func (m *meter) show(done, total int64) {
	now, every := time.Now(), meterLine
	if m.terminal {
		every = meterRedraw
	}
	if now.Sub(m.shown) < every {
		return
	}
	m.shown = now
	text, fraction := m.verb+" "+m.amount(float64(done)), -1.0
	switch {
	case total > 0:
		text += " of " + m.amount(float64(total))
		fraction = float64(done) / float64(total)
	case m.part != nil:
		fraction = m.part()
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
		text = bar(min(fraction, 1)) + " " + text
	}
	// A text in the last column would begin a new line.
	fmt.Fprint(m, eraseLine, m.cut(text, m.width-1))
}

func (m *meter) end() {
	if m.terminal && m.shown != m.begin {
		fmt.Fprint(m, eraseLine)
	}
}

const eraseLine = "\r\x1b[K"

func bar(fraction float64) string {
	const width = 20
	full := int(fraction * width)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), int(fraction*100))
}
