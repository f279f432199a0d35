package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const testHelp = `Test has the server send a sample of each type of call now, past the queue, and
prints each request, its signature, the answer and how long it took. A
destination may be left out if there is only one. The exit status is 1 if an
endpoint took one of them amiss.

With --document the destination need not be set up: the file is that of
'hookferry destination set', and - is the standard input.

Examples:
  hookferry test
  hookferry test acme --type track --event 'Order Completed'
  hookferry test http://localhost:9000/hook --type track --type identify
  hookferry test --document acme.json --type track
`

func test(o *options) action {
	types := o.choices("type", "`type` of call", callTypes...)
	event := o.text("event", "", "the `name` of tracks, pages and screens")
	source := o.text("source", "", "say what the filter of this `source` leaves out, too")
	document := o.text("document", "", "test the destination that this `file` describes, - for the standard input")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) (err error) {
		if len(args) > 1 {
			return usagef("want one destination or URL")
		}
		request := api.TestRequest{Types: *types, Event: *event, Source: *source}
		switch {
		case *document != "" && len(args) == 1:
			return usagef("want a destination, a URL or --document")
		case *document != "":
			if request.Document, err = readDocument(*document, p); err != nil {
				return err
			}
		case len(args) == 1 && strings.Contains(args[0], "://"):
			request.URL = args[0]
		case len(args) == 1:
			request.Destination = args[0]
		default:
			if request.Destination, err = theDestination(ctx, c, ""); err != nil {
				return err
			}
		}
		result, err := c.Test(ctx, request)
		if err != nil {
			return err
		}
		s := p.screen(p.stdout)
		failures := 0
		for i, e := range result.Exchanges {
			if e.Outcome != "delivered" {
				failures++
			}
			if *f.json {
				err = printJSON(s, e)
			} else {
				if i > 0 {
					fmt.Fprintln(s)
				}
				err = writeExchange(s, e)
			}
			if err != nil {
				return err
			}
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

// maxDocument bounds the file of a destination in bytes, as the server does.
const maxDocument = 1 << 20

// readDocument reads a destination from a file, or from the standard input. Its errors repeat
// nothing of what it reads, since that has secrets in it.
func readDocument(name string, p process) (document map[string]any, err error) {
	in := p.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxDocument+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", name, err)
	case len(text) > maxDocument:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxDocument)
	case yaml.Unmarshal(text, &document) != nil || document == nil:
		return nil, fmt.Errorf("%s is not YAML or JSON with keys and values", name)
	}
	return document, nil
}

func writeExchange(s screen, e api.Exchange) error {
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
	return nil
}

func writeHeaders(s screen, mark string, list []api.Header) {
	for _, h := range list {
		fmt.Fprintln(s, s.paint(faint, mark+clean(h.Name)+": ")+clean(h.Value))
	}
}
