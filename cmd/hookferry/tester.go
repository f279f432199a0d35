package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

func test(o *options) action {
	types := o.choices("type", "`type` of call", callTypes)
	event := o.String("event", "", "the `name` of tracks, pages and screens")
	source := o.String("source", "", "say what the filter of this `source` leaves out, too")
	document := o.String("document", "", "test the destination that this `file` describes, - for the standard input")
	return o.admin(func(ctx context.Context, c *call) (err error) {
		request := api.TestRequest{Types: *types, Event: *event, Source: *source}
		switch {
		case *document != "" && len(c.args) == 1:
			return usagef("want a destination, a URL or --document")
		case *document != "":
			request.Document, err = c.readDocument(*document)
		case len(c.args) == 0:
			request.Destination, err = onlyDestination(ctx, c)
		case strings.Contains(c.args[0], "://"):
			request.URL = c.args[0]
		default:
			request.Destination = c.args[0]
		}
		if err != nil {
			return err
		}
		result, err := api.Do[api.TestResult](ctx, c.client,
			api.Request{Method: http.MethodPost, Path: api.TestPath, Body: request, Timeout: api.TestTimeout})
		if err != nil {
			return err
		}
		s := c.screen(c.stdout)
		failures := 0
		for i, e := range result.Exchanges {
			if e.Outcome != "delivered" {
				failures++
			}
			if c.json {
				if err := printJSON(s, e); err != nil {
					return err
				}
				continue
			}
			if i > 0 {
				fmt.Fprintln(s)
			}
			writeExchange(s, e)
		}
		if failures > 0 {
			return fmt.Errorf("%d of %s failed", failures, counted(len(result.Exchanges), "request"))
		}
		if len(result.Exchanges) == 0 {
			return errors.New("nothing was sent")
		}
		return nil
	})
}

func writeExchange(s screen, e api.Exchange) {
	how := good
	if e.Outcome != "delivered" {
		how = bad
	}
	answer := "no answer"
	if e.Status != 0 {
		answer = fmt.Sprint("answered ", e.Status)
	}
	fmt.Fprintf(s, "%s to %s: %s in %s\n", s.paint(bold, clean(e.Type)), clean(e.Endpoint),
		s.paint(how, answer+", "+clean(cmp.Or(e.Outcome, "?"))), millis(e.Timing.Total))
	if e.Filtered {
		fmt.Fprintln(s, s.paint(bad, "filtered: a filter leaves such calls out; only this test sent one"))
	}
	if e.Reason != "" || e.Error != "" {
		fmt.Fprintln(s, s.paint(bad, clean(strings.TrimSpace(e.Reason+"  "+e.Error))))
	}
	var steps []string
	for _, step := range []struct {
		what string
		at   float64
	}{{"resolved", e.Timing.Resolved}, {"connected", e.Timing.Connected}, {"secured", e.Timing.Secured}, {"answer began", e.Timing.FirstByte}} {
		if step.at > 0 {
			steps = append(steps, step.what+" at "+millis(step.at))
		}
	}
	if len(steps) > 0 {
		fmt.Fprintln(s, s.paint(faint, strings.Join(steps, ", ")))
	}
	writeHeaders(s, "> ", e.Headers)
	if len(e.Body) > 0 {
		s.Write(appendPretty(nil, e.Body))
	}
	writeHeaders(s, "< ", e.Got)
	if e.Answer != "" {
		fmt.Fprintln(s, cleanLines(e.Answer))
	}
}

func writeHeaders(s screen, mark string, list []api.Header) {
	for _, h := range list {
		fmt.Fprintln(s, s.paint(faint, mark+clean(h.Name)+": ")+clean(h.Value))
	}
}
