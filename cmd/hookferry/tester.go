package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

func test(c *command) action {
	c.set.StringArray("type", nil, "`type` of call: "+strings.Join(callTypes, ", ")+"; for the destination of a tenant, of any event; may be repeated")
	c.cobra.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(callTypes, cobra.ShellCompDirectiveNoFileComp))
	event := c.set.String("event", "", "the `name` of tracks, pages and screens")
	source := c.set.String("source", "", "say what the filter of this `source` leaves out, too")
	document := c.set.String("document", "", "test the destination that this `file` describes, - for the standard input")
	return c.admin(func(ctx context.Context) (err error) {
		request := api.TestRequest{Types: c.texts("type"), Event: *event, Source: *source}
		switch {
		case *document != "" && len(c.args) == 1:
			return usagef("want a destination, a URL or --document")
		case *document != "":
			request.Document, err = c.readDocument(*document)
		case len(c.args) == 0:
			request.Destination, err = c.onlyDestination(ctx)
		case strings.Contains(c.args[0], "://"):
			request.URL = c.args[0]
		default:
			request.Destination = c.args[0]
		}
		if err != nil {
			return err
		}
		if _, ofTenant := tenants.TenantOf(request.Destination); !ofTenant {
			for _, typ := range request.Types {
				if !slices.Contains(callTypes, typ) {
					return usagef("invalid argument %q for \"--type\" flag: want one of %s", typ, strings.Join(callTypes, ", "))
				}
			}
		}
		r := api.Request{Method: http.MethodPost, Path: api.TestPath, Body: request, Timeout: api.TestTimeout}
		result, err := api.Do[api.TestResult](ctx, c.client, r)
		if err != nil {
			return err
		}
		failures := 0
		for i, e := range result.Exchanges {
			if e.Outcome != "delivered" {
				failures++
			}
			err := c.output(e, func(s screen) {
				if i > 0 {
					fmt.Fprintln(s)
				}
				writeExchange(s, e)
			})
			if err != nil {
				return err
			}
		}
		switch {
		case failures > 0:
			return fmt.Errorf("%d of %s failed", failures, counted(len(result.Exchanges), "request"))
		case len(result.Exchanges) == 0:
			return errors.New("nothing was sent")
		}
		return nil
	})
}

func writeExchange(s screen, e api.Exchange) {
	how, answer := good, "no answer"
	if e.Outcome != "delivered" {
		how = bad
	}
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
	steps := ""
	t := e.Timing
	for i, at := range []webhook.Millis{t.Resolved, t.Connected, t.Secured, t.FirstByte} {
		if at > 0 {
			steps += ", " + []string{"resolved", "connected", "secured", "answer began"}[i] + " at " + millis(at)
		}
	}
	if steps != "" {
		fmt.Fprintln(s, s.paint(faint, strings.TrimPrefix(steps, ", ")))
	}
	writeHeaders(s, "> ", e.Headers)
	if len(e.Body) > 0 {
		io.WriteString(s, pretty(e.Body))
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
