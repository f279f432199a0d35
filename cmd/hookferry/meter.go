package main

import (
	"fmt"
	"strings"
	"time"
)

// How often a meter prints: on a terminal, and elsewhere.
const (
	meterRedraw = 100 * time.Millisecond
	meterLine   = 5 * time.Second
)

// A meter shows how far long work is: as a bar on a terminal, else by a line now and
// then. Work that ends before the first line prints nothing.
type meter struct {
	screen
	verb string // such as "replayed"
	// amount formats how much is done, and how much is done in a second.
	amount func(float64) string
	begin  time.Time
	shown  time.Time
	drawn  bool
}

func newMeter(s screen, verb string) *meter {
	now := time.Now()
	return &meter{screen: s, verb: verb, amount: rate, begin: now, shown: now}
}

// show shows that done of total things are done; 0 means an unknown total. Then
// fraction is the part that is done, below 0 if unknown.
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
		text = shorten(text, m.width-1) // the last column would begin a new line
	}
	fmt.Fprintf(m, "\r\x1b[K%s", text)
	m.drawn = true
}

// end removes the bar.
func (m *meter) end() {
	if m.drawn {
		fmt.Fprint(m, "\r\x1b[K")
		m.drawn = false
	}
}

// bar draws a fraction.
func bar(fraction float64) string {
	const width = 20
	fraction = min(max(fraction, 0), 1)
	full := int(fraction * width)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), int(fraction*100))
}
