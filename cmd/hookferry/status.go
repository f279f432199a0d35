package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// maxListed is the largest number of destinations in one request; the server has the same limit.
const maxListed = 500

// An overview is the output of status.
type overview struct {
	Status  api.Status   `json:"status"`
	Nodes   api.Nodes    `json:"nodes"`
	Sources []api.Source `json:"sources"`
	api.Destinations
}

func status(o *options) action {
	watch := o.Bool("watch", false, "print it again and again")
	every := o.duration("every", 2*time.Second, "`time` between two")
	filter := o.parameters(api.ParamQuery, api.ParamSource, api.ParamState, api.ParamSort)
	limit := o.number("limit", 20, 1, maxListed, "`number` of destinations to list")
	all := o.Bool("all", false, "list all destinations")
	return o.admin(func(ctx context.Context, c *call) error {
		for shown := false; ; shown = true {
			v, err := ask(ctx, c, filter(), *limit, *all)
			if shown && ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			s := c.screen(c.stdout)
			switch {
			case c.json:
				err = printJSON(c.stdout, v)
			case *watch && s.terminal:
				err = redraw(s, v.lines(s))
			default:
				*watch = false
				_, err = fmt.Fprint(s, v.lines(s))
			}
			if err != nil || !*watch {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(*every):
			}
		}
	})
}

// ask requests the data of an overview, with up to limit destinations, or with all destinations if
// all is true. It requests the sources only for JSON output.
func ask(ctx context.Context, c *call, filter url.Values, limit int, all bool) (v overview, err error) {
	if v.Status, err = api.Do[api.Status](ctx, c.client, api.Request{Path: api.StatusPath}); err != nil {
		return v, err
	}
	if v.Nodes, err = api.Do[api.Nodes](ctx, c.client, api.Request{Path: api.NodesPath}); err != nil {
		return v, err
	}
	if c.json {
		v.Sources = []api.Source{}
		for s, err := range api.List[api.Source](ctx, c.client, api.SourcesPath, nil) {
			if err != nil {
				return v, err
			}
			v.Sources = append(v.Sources, s)
		}
	}
	if all {
		limit = maxListed
	}
	filter.Set(api.ParamLimit, strconv.Itoa(limit))
	var before []api.Destination
	for {
		v.Destinations, err = api.Do[api.Destinations](ctx, c.client, api.Request{Path: api.DestinationsPath, Query: filter})
		if err != nil {
			return v, err
		}
		before = append(before, v.Destinations.Destinations...)
		if v.Destinations.Destinations = before; !all || v.After == "" {
			return v, nil
		}
		filter.Set(api.ParamAfter, v.After)
	}
}

// redraw replaces the content of the terminal by text, cut to the height of the terminal.
func redraw(s screen, text string) error {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if s.height > 1 && len(lines) > s.height-1 {
		hidden := len(lines) - (s.height - 2)
		lines = append(lines[:s.height-2], s.paint(faint, "and "+counted(hidden, "more line")))
	}
	// Move the cursor to the top, erase the rest of each line, and erase the lines below the text.
	_, err := fmt.Fprintf(s, "\x1b[H%s\x1b[K\n\x1b[J", strings.Join(lines, "\x1b[K\n"))
	return err
}

func (v *overview) lines(s screen) string {
	var b strings.Builder
	s.Writer = &b
	st := v.Status
	state := amount{"ready", "", good}
	if !st.Ready {
		state = amount{"takes no calls", "", bad}
	}
	amounts(s, 0, "", amount{fmt.Sprintf("hookferry %s on %s", clean(st.Version), clean(st.Node)), "", bold}, state,
		amount{"up", spell(st.Now.Sub(st.Started)), normal})
	if st.Config.File != "" {
		amounts(s, 0, "", amount{"settings of", clean(st.Config.File), normal}, amount{"read", spell(st.Now.Sub(st.Config.Loaded)) + " ago", normal})
	}
	if st.Config.Error != "" {
		fmt.Fprintln(s, s.paint(bad, clean("the newest settings are not in use: "+st.Config.Error)))
	}
	fmt.Fprintln(s)

	calls, totals := st.Calls, st.Totals
	amounts(s, 12, "calls", amount{grouped(calls.Accepted), "accepted", good}, failed(calls.Rejected, "wrong"),
		failed(calls.Limited, "over the rate"), failed(calls.Unknown, "without a known key"), failed(calls.Failed, "told to try again"))
	amounts(s, 12, "deliveries", amount{grouped(totals.Delivered), "delivered", good}, failed(totals.Retried, "retried"), failed(total(totals.Dead), "given up"))
	amounts(s, 12, "a second", amount{rate(st.Rates.Accepted), "accepted", normal}, amount{rate(st.Rates.Delivered), "delivered", normal},
		amount{rate(st.Rates.Retried), "retried", normal}, amount{rate(st.Rates.Dead), "given up", normal})
	now := []amount{{grouped(st.Waiting), "waiting", normal}, {grouped(totals.InFlight), "on their way", normal}, failed(int64(st.Dead), "dead letters")}
	if !st.Oldest.IsZero() {
		now = slices.Insert(now, 1, amount{spell(st.Now.Sub(st.Oldest)), "the oldest", normal})
	}
	amounts(s, 12, "now", now...)
	fmt.Fprintln(s)
	if v.Nodes.Shared {
		v.nodeTable().print(s)
		fmt.Fprintln(s)
	}
	if len(v.Destinations.Destinations) > 0 {
		caption := "delivered, retried and given up: since the start, " + spell(st.Now.Sub(st.Started)) + " ago"
		if s.width > 0 {
			caption = shorten(caption, s.width)
		}
		fmt.Fprintln(s, s.paint(faint, caption))
	}
	v.table().print(s)
	if more := v.Total - len(v.Destinations.Destinations); more > 0 {
		fmt.Fprintln(s)
		var states []amount
		for _, state := range api.States {
			if n := v.States[state]; n > 0 {
				states = append(states, amount{grouped(n), state, styleOf(state)})
			}
		}
		amounts(s, 12, "in all", states...)
		fmt.Fprintln(s, s.paint(faint, "and "+grouped(more)+" more: --all lists them"))
	}
	return b.String()
}

func total(byReason map[string]int64) (n int64) {
	for _, of := range byReason {
		n += of
	}
	return n
}

func (v *overview) nodeTable() *table {
	t := &table{columns: []column{
		{title: "SERVER", flexible: true}, {title: "VERSION", spare: 3}, {title: "STATE"}, {title: "UP", right: true, spare: 2}, {title: "IN FLIGHT", right: true, spare: 4},
		{title: "DELIVERED", right: true, spare: 1}, {title: "/S", right: true}, {title: "SEEN", right: true},
	}}
	for _, n := range v.Nodes.Nodes {
		name := n.Name
		if n.Self {
			name += " (asked)"
		}
		state := cell{"ready", good}
		if !n.Ready {
			state = cell{"no calls", bad}
		}
		up, seen := "-", "-"
		if !n.Started.IsZero() {
			up = spell(v.Status.Now.Sub(n.Started))
		}
		if !n.Seen.IsZero() {
			seen = spell(max(v.Status.Now.Sub(n.Seen), 0)) + " ago"
		}
		t.add(cell{name, bold}, n.Version, state, up, n.InFlight, n.Delivered, rate(n.Rates.Delivered), seen)
	}
	return t
}

// An amount is a number with its description and style.
type amount struct {
	number, what string
	style
}

// failed returns the amount of something that should be 0.
func failed(n int64, what string) amount {
	if n == 0 {
		return amount{"0", what, faint}
	}
	return amount{grouped(n), what, uneasy}
}

// amounts prints amounts after a label, on one line, or on several lines if the terminal is narrow.
func amounts(s screen, indent int, label string, list ...amount) {
	used := indent
	fmt.Fprint(s, s.paint(faint, label), strings.Repeat(" ", indent-len(label)))
	for i, a := range list {
		text := strings.TrimSpace(a.number + " " + a.what)
		length := columns(text)
		switch {
		case i > 0 && s.width > 0 && used+gap+length > s.width:
			fmt.Fprint(s, "\n", strings.Repeat(" ", indent))
			used = indent
		case i > 0:
			fmt.Fprint(s, strings.Repeat(" ", gap))
			used += gap
		}
		fmt.Fprint(s, s.paint(a.style, a.number), strings.TrimPrefix(text, a.number))
		used += length
	}
	fmt.Fprintln(s)
}

func (v *overview) table() *table {
	t := &table{columns: []column{
		{title: "DESTINATION", flexible: true}, {title: "STATE"}, {title: "WAITING", right: true}, {title: "IN FLIGHT", right: true, spare: 7},
		{title: "DELIVERED", right: true, spare: 1}, {title: "RETRIED", right: true, spare: 4}, {title: "GIVEN UP", right: true, spare: 2}, {title: "DEAD", right: true},
		{title: "/S", right: true, spare: 6}, {title: "P50", right: true, spare: 5}, {title: "P99", right: true, spare: 3},
	}}
	for _, d := range v.Destinations.Destinations {
		dead := cell{"?", normal}
		if d.DeadLetters != nil {
			dead = number(int64(*d.DeadLetters))
		}
		p50, p99 := "-", "-"
		if d.Latency.Requests > 0 {
			p50, p99 = millis(d.Latency.P50), millis(d.Latency.P99)
		}
		t.add(cell{d.ID, bold}, cell{d.State, styleOf(d.State)}, d.Waiting, d.InFlight, d.Delivered,
			number(d.Retried), number(total(d.Dead)), dead, rate(d.Rates.Delivered), p50, p99)
		t.note(why(d, v.Status.Now)...)
	}
	return t
}

// number returns the cell of a count that should be 0.
func number(n int64) cell {
	a := failed(n, "")
	return cell{a.number, a.style}
}

func styleOf(state string) style {
	switch state {
	case api.StateOK:
		return good
	case api.StateIdle, "disabled":
		return faint
	case api.StateFailing, api.StateRefusing, "invalid":
		return bad
	}
	return uneasy
}

// why explains why deliveries to a destination fail or wait: the last answer, and the next attempt.
func why(d api.Destination, now time.Time) (lines []string) {
	var words []string
	add := func(text string) { words = append(words, text) }
	h, next := d.Held, d.Next
	troubled := slices.Contains([]string{api.StateFailing, api.StateRefusing, api.StateRetrying}, d.State)
	switch f := d.Failure; {
	case f != nil && troubled:
		lines = append(lines, answered(&f.Attempt))
		add(fmt.Sprintf("try %d, %s ago", f.Attempt.Try, spell(now.Sub(f.Attempt.At))))
		if f.Due.IsZero() {
			add("given up")
		}
		if h == nil {
			next = f.Due
		}
	case h == nil:
		return nil
	case h.Reason != "":
		add(clean(h.Reason))
	}
	if h != nil {
		if !h.Since.IsZero() {
			add("since " + spell(now.Sub(h.Since)))
		}
		next = cmp.Or(h.Until, next)
	}
	if !next.IsZero() {
		what := "next attempt"
		if h != nil && h.Hold != api.StateFailing {
			what = "looked up again"
		}
		add(what + " in " + spell(next.Sub(now)))
	}
	return append(lines, strings.Join(words, ", "))
}

// tag matches an HTML tag, even if its end was cut off.
var tag = regexp.MustCompile(`<[^>]*>?`)

// answered returns the answer to a failed request on one line, without HTML tags. If there was no
// answer, it returns the reason.
func answered(a *api.Attempt) string {
	what, words := cmp.Or(a.Reason, "no answer"), a.Error
	if a.Status != 0 {
		what = strings.TrimSpace(fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status)))
		words = cmp.Or(a.Answer, a.Error)
	}
	if strings.HasPrefix(strings.TrimSpace(words), "<") {
		words = tag.ReplaceAllString(words, " ")
	}
	if words = strings.Join(strings.Fields(words), " "); words != "" {
		what += ": " + words
	}
	return clean(what)
}
