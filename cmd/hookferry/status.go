package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// maxListed is the largest number of destinations in one request; the server has the same limit.
const maxListed = 500

// An overview is the output of status.
type overview struct {
	Status       api.Status       `json:"status"`
	Nodes        api.Nodes        `json:"nodes"`
	Sources      []api.Source     `json:"sources"`
	Destinations api.Destinations `json:"destinations"`
}

func status(c *command) action {
	watch := c.set.Bool("watch", false, "print it again and again")
	every := c.duration("every", 2*time.Second, "`time` between two")
	filter := c.parameters(api.ParamQuery, api.ParamSource, api.ParamState, api.ParamSort)
	limit := c.number("limit", 20, 1, maxListed, "`number` of destinations to list")
	all := c.set.Bool("all", false, "list all destinations")
	return c.admin(func(ctx context.Context) error {
		for shown := false; ; shown = true {
			v, err := c.overview(ctx, filter(), *limit, *all)
			if shown && ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = c.output(v, func(s screen) {
					text := v.lines(s)
					if *watch = *watch && s.terminal; *watch {
						text = redraw(s, text)
					}
					io.WriteString(s, text)
				})
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

// overview requests an overview with up to limit destinations, or all. The sources are only for JSON.
func (c *command) overview(ctx context.Context, filter url.Values, limit int, all bool) (v overview, err error) {
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
	v.Destinations.Items = []api.Destination{} // for JSON, where null is no list
	for more := true; more; {
		page, err := api.Do[api.Destinations](ctx, c.client, api.Request{Path: api.DestinationsPath, Query: filter})
		if err != nil {
			return v, err
		}
		page.Items = append(v.Destinations.Items, page.Items...)
		v.Destinations = page
		filter.Set(api.ParamAfter, page.After)
		more = all && page.After != ""
	}
	if name := filter.Get(api.ParamSource); name != "" && v.Destinations.Total == 0 {
		return v, c.findSource(ctx, name)
	}
	return v, nil
}

// findSource returns an error if there is no source of a name.
func (c *command) findSource(ctx context.Context, name string) error {
	for s, err := range api.List[api.Source](ctx, c.client, api.SourcesPath, url.Values{api.ParamQuery: {name}}) {
		if err != nil || s.Name == name {
			return err
		}
	}
	return nothing(fmt.Errorf("there is no source %q", name))
}

// redraw returns what replaces the content of the terminal by text, cut to its height.
func redraw(s screen, text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if s.height > 1 && len(lines) > s.height-1 {
		hidden := len(lines) - (s.height - 2)
		lines = append(lines[:s.height-2], s.paint(faint, "and "+counted(hidden, "more line")))
	}
	// Move the cursor to the top, erase the rest of each line, and erase the lines below the text.
	return "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\n\x1b[J"
}

func (v *overview) lines(s screen) string {
	var b strings.Builder
	s.Writer = &b
	st, calls, totals, rates := v.Status, v.Status.Calls, v.Status.Totals, v.Status.Rates
	up := spell(st.Now.Sub(st.Started))
	state := cell{"ready", good}
	if !st.Ready {
		state = cell{"takes no calls", bad}
	}
	s.line(0, "", cell{"hookferry " + st.Version + " on " + st.Node, bold}, state, "up "+up)
	if st.Config.File != "" {
		s.line(0, "", "settings of "+st.Config.File, "read "+ago(st.Config.Loaded, st.Now))
	}
	if st.Config.Error != "" {
		fmt.Fprintln(s, s.paint(bad, cleanLines("the newest settings are not in use: "+st.Config.Error)))
	}
	for _, t := range st.Troubles {
		fmt.Fprintln(s, s.paint(bad, clean(troubleText(t, st.Now))))
	}
	if len(st.Unrouted) > 0 {
		fmt.Fprintln(s, s.paint(uneasy, clean("no destination gets the calls of "+strings.Join(st.Unrouted, ", "))))
	}
	fmt.Fprintln(s)

	s.line(12, "calls", cell{grouped(calls.Accepted) + " accepted", good}, failed(calls.Rejected, " wrong"),
		failed(calls.Limited, " over the rate"), failed(calls.Unknown, " without a known key"), failed(calls.Failed, " told to try again"))
	went := []any{cell{grouped(totals.Delivered) + " delivered", good}, failed(totals.Retried, " retried"), failed(total(totals.Dead), " given up")}
	if totals.Unkept > 0 {
		went = append(went, failed(totals.Unkept, " not kept"))
	}
	s.line(12, "deliveries", went...)
	s.line(12, "a second", rate(rates.Accepted)+" accepted", rate(rates.Delivered)+" delivered", rate(rates.Retried)+" retried",
		rate(rates.Dead)+" given up")
	now := []any{grouped(st.Waiting) + " waiting", grouped(totals.InFlight) + " on their way", failed(int64(st.Dead), " dead letters")}
	if !st.Oldest.IsZero() {
		now = slices.Insert(now, 1, any(spell(st.Now.Sub(st.Oldest))+" the oldest"))
	}
	s.line(12, "now", now...)
	fmt.Fprintln(s)
	if v.Nodes.Shared {
		v.nodeTable().print(s)
		fmt.Fprintln(s)
	}
	if len(v.Destinations.Items) > 0 {
		fmt.Fprintln(s, s.paint(faint, s.cut("delivered, retried and given up: since the start, "+up+" ago", s.width)))
	}
	v.table().print(s)
	if more := v.Destinations.Total - len(v.Destinations.Items); more > 0 {
		fmt.Fprintln(s)
		var states []any
		for _, state := range api.States {
			if n := v.Destinations.States[state]; n > 0 {
				states = append(states, cell{grouped(n) + " " + state, styleOf(state)})
			}
		}
		s.line(12, "in all", states...)
		fmt.Fprintln(s, s.paint(faint, "and "+grouped(more)+" more: --all lists them"))
	}
	return b.String()
}

// troubleText says what is wrong with the store.
func troubleText(t api.Trouble, now time.Time) string {
	switch t.Kind {
	case api.TroubleRefused:
		return "the store refused calls, the last one " + ago(t.At, now) + ": " + t.Error
	case api.TroubleUnusable:
		return "the store cannot be used: " + t.Error
	}
	return "maintenance of the store keeps failing: " + t.Step + ", for " + spell(now.Sub(t.At)) + "; the log says why"
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
		up := strings.TrimSuffix(ago(n.Started, v.Status.Now), " ago")
		t.add(cell{name, bold}, n.Version, state, up, n.InFlight, n.Delivered, rate(n.Rates.Delivered), ago(n.Seen, v.Status.Now))
	}
	return t
}

// failed returns the cell of a number that should be 0, with a unit behind it.
func failed(n int64, unit string) cell {
	how := uneasy
	if n == 0 {
		how = faint
	}
	return cell{grouped(n) + unit, how}
}

func (v *overview) table() *table {
	t := &table{columns: []column{
		{title: "DESTINATION", flexible: true}, {title: "STATE"}, {title: "WAITING", right: true}, {title: "IN FLIGHT", right: true, spare: 7},
		{title: "DELIVERED", right: true, spare: 1}, {title: "RETRIED", right: true, spare: 4}, {title: "GIVEN UP", right: true, spare: 2}, {title: "DEAD", right: true},
		{title: "/S", right: true, spare: 6}, {title: "P50", right: true, spare: 5}, {title: "P99", right: true, spare: 3},
	}}
	for _, d := range v.Destinations.Items {
		dead := cell{"?", normal}
		if d.DeadLetters != nil {
			dead = failed(int64(*d.DeadLetters), "")
		}
		p50, p99 := "-", "-"
		if d.Latency.Requests > 0 {
			p50, p99 = millis(d.Latency.P50), millis(d.Latency.P99)
		}
		t.add(cell{d.ID, bold}, cell{d.State, styleOf(d.State)}, d.Waiting, d.InFlight, d.Delivered,
			failed(d.Retried, ""), failed(total(d.Dead), ""), dead, rate(d.Rates.Delivered), p50, p99)
		t.note(explain(d, v.Status.Now)...)
	}
	return t
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

// explain says why deliveries to a destination fail or wait: the last answer, and the next attempt.
func explain(d api.Destination, now time.Time) (lines []string) {
	f, h, next, words := d.Failure, d.Held, d.Next, []string{}
	disabled := d.State == "disabled" && d.Enabled // by the server, not by the settings
	switch {
	case f != nil && (disabled || slices.Contains([]string{api.StateFailing, api.StateRefusing, api.StateRetrying}, d.State)):
		lines = append(lines, answerText(&f.Attempt))
		words = append(words, fmt.Sprintf("try %d, %s ago", f.Attempt.Try, spell(now.Sub(f.Attempt.At))))
		if f.Due.IsZero() {
			words = append(words, "given up")
		}
		if h == nil {
			next = f.Due
		}
	case h == nil:
		return nil
	case h.Reason != "":
		words = append(words, clean(string(h.Reason)))
	}
	what, due := "next attempt in ", "the next attempt is due"
	if h != nil {
		if !h.Since.IsZero() {
			words = append(words, "since "+spell(now.Sub(h.Since)))
		}
		if h.Kind != api.StateFailing {
			what, due = "looked up again in ", "looked up again now"
		}
		next = cmp.Or(h.Until, next)
	}
	retried := h == nil && !next.IsZero() || h != nil && h.Kind == api.StateFailing
	switch {
	case next.Sub(now) >= time.Second/2: // which is not spelled as 0s
		words = append(words, what+spell(next.Sub(now)))
	case retried && d.InFlight > 0:
		words = append(words, "an attempt is in flight")
	case !next.IsZero():
		words = append(words, due)
	}
	if disabled {
		words = append(words, "'hookferry resume "+clean(d.ID)+"' enables it")
	}
	return append(lines, strings.Join(words, ", "))
}

// tag matches an HTML tag, even if its end was cut off.
var tag = regexp.MustCompile(`<[^>]*>?`)

// answerText returns the answer to a failed request on one line, without HTML tags, or the reason if
// there was none.
func answerText(a *webhook.Attempt) string {
	what, words := cmp.Or(string(a.Reason), "no answer"), a.Error
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
