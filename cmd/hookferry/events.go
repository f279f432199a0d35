package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func events(c *command) action {
	filter := c.parameters(api.ParamDestination, api.ParamType, api.ParamKind, api.ParamQuery)
	body := c.set.Bool("body", false, "print the body of what is accepted too")
	return c.admin(func(ctx context.Context) error {
		begun := func() {
			fmt.Fprintf(c.process.stderr, "What happens on %s from now on, until you interrupt:\n", c.client.Host())
		}
		for live, err := range api.Stream[api.Live](ctx, c.client, api.Request{Path: api.LivePath, Query: filter()}, begun) {
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = c.output(live, func(s screen) { writeLive(s, live, *body) })
			}
			if err != nil {
				return err
			}
		}
		return nil // not reached: a stream ends with an error
	})
}

func writeLive(s screen, live api.Live, body bool) {
	if live.Skipped > 0 {
		fmt.Fprintln(s, s.paint(uneasy, counted(live.Skipped, "more event")+" left out"))
	}
	if e := live.Event; e != nil {
		how, what := eventText(s, e)
		fmt.Fprintf(s, "%s  %s  %s  %s\n", s.paint(faint, e.At.Local().Format("15:04:05.000")),
			s.paint(how, fmt.Sprintf("%-9s", clean(e.Kind))), s.paint(bold, clean(e.Destination)), what)
		if body && len(e.Body) > 0 {
			io.WriteString(s, pretty(e.Body))
		}
	}
}

func eventText(s screen, e *api.Event) (style, string) {
	id := "  " + s.paint(faint, clean(e.ID))
	subject := clean(e.Type) + id
	switch {
	case e.Kind == "accepted" && len(e.Body) > 0:
		return normal, describe(e.Body) + id
	case e.Kind == "delivered":
		return good, subject
	case e.Kind == "dead":
		return bad, subject + "  " + clean(e.Reason)
	case e.Attempt == nil:
		return normal, subject
	}
	a, how := e.Attempt, good
	what := fmt.Sprintf("%s  try %d  %s  %s in %s", subject, a.Try, clean(a.Endpoint), answerText(a), millis(a.Took))
	if e.Outcome != "" && e.Outcome != "delivered" {
		how = uneasy
		what += "  " + clean(strings.TrimSpace(e.Outcome+" "+string(a.Reason)))
	}
	if !e.Due.IsZero() {
		what += ", again in " + spell(e.Due.Sub(e.At))
	}
	return how, what
}
