package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func events(o *options) action {
	filter := o.parameters(api.ParamDestination, api.ParamType, api.ParamKind, api.ParamQuery)
	body := o.Bool("body", false, "print the body of what is accepted too")
	return o.admin(func(ctx context.Context, c *call) error {
		s := c.screen(c.stdout)
		begun := func() {
			fmt.Fprintf(c.stderr, "What happens on %s from now on, until you interrupt:\n", c.client.Host())
		}
		for live, err := range api.Stream[api.Live](ctx, c.client, api.Request{Path: api.LivePath, Query: filter()}, begun) {
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case c.json:
				err = printJSON(s, live)
			default:
				err = writeLive(s, live, *body)
			}
			if err != nil {
				return err
			}
		}
		return nil // not reached: a stream ends with an error
	})
}

func writeLive(s screen, live api.Live, body bool) error {
	var text strings.Builder
	if live.Skipped > 0 {
		fmt.Fprintln(&text, s.paint(uneasy, counted(live.Skipped, "more event")+" left out"))
	}
	if e := live.Event; e != nil {
		how, what := happened(s, e)
		fmt.Fprintf(&text, "%s  %s  %s  %s\n", s.paint(faint, e.At.Local().Format("15:04:05.000")),
			s.paint(how, fmt.Sprintf("%-9s", clean(e.Kind))), s.paint(bold, clean(e.Destination)), what)
		if body && len(e.Body) > 0 {
			text.Write(appendPretty(nil, e.Body))
		}
	}
	_, err := s.Write([]byte(text.String()))
	return err
}

func happened(s screen, e *api.Event) (style, string) {
	subject := clean(e.Type) + "  " + s.paint(faint, clean(e.ID))
	switch {
	case e.Kind == "accepted" && len(e.Body) > 0:
		return normal, describe(e.Body) + "  " + s.paint(faint, clean(e.ID))
	case e.Kind == "delivered":
		return good, subject
	case e.Kind == "dead":
		return bad, subject + "  " + clean(e.Reason)
	case e.Attempt == nil:
		return normal, subject
	}
	a := e.Attempt
	how := good
	what := fmt.Sprintf("%s  try %d  %s  %s in %s", subject, a.Try, clean(a.Endpoint), answered(a), millis(a.Took))
	if e.Outcome != "" && e.Outcome != "delivered" {
		how = uneasy
		what += "  " + clean(strings.TrimSpace(e.Outcome+" "+a.Reason))
	}
	if !e.Due.IsZero() {
		what += ", again in " + spell(e.Due.Sub(e.At))
	}
	return how, what
}
