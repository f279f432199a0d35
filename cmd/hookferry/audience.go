package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const audienceHelp = `An audience is a set of users that a destination is told of: of each user that
joins or leaves.

If a sync is interrupted, say it again: it goes on with what is left.

Examples:
  hookferry audience create 'Big Spenders' spenders.txt
  hookferry audience sync 'Big Spenders' - < spenders.txt
  hookferry audience members --destination acme 'Big Spenders'
`

const (
	audienceCreateHelp = `Register an audience, with members if a file of them is given: one id a line;
- is standard input.

Examples:
  hookferry audience create 'Big Spenders'
  hookferry audience create --destination acme 'Big Spenders' spenders.txt
`
	audienceSyncHelp = `Make the members of an audience those of a file, one id a line, and tell its
destination who joined and who left; - is standard input. If it is interrupted,
say it again: it goes on with what is left.

Examples:
  hookferry audience sync 'Big Spenders' spenders.txt
`
	audienceListHelp = `List the audiences, by destination and trait.

Examples:
  hookferry audience ls
`
	audienceMembersHelp = `Print the members of an audience, one id a line.

Examples:
  hookferry audience members 'Big Spenders' > members.txt
`
)

func destinationFlag(o *options) *string {
	return o.text("destination", "", "`id` of the destination; may be left out if there is only one")
}

func createAudience(o *options) action {
	destination := destinationFlag(o)
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		if len(args) < 1 || len(args) > 2 {
			return usagef("want the name of the audience, and perhaps a file of members")
		}
		id, err := theDestination(ctx, c, *destination)
		if err != nil {
			return err
		}
		// First what may fail without anything done.
		var members *upload
		if len(args) == 2 {
			if members, err = openUpload(args[1], p); err != nil {
				return err
			}
			defer members.Close()
		}
		a, err := c.CreateAudience(ctx, api.Audience{Destination: id, Name: args[0]})
		if err != nil {
			return err
		}
		if *f.json {
			err = printJSON(p.stdout, a)
		} else {
			_, err = fmt.Fprintf(p.stdout, "%s created for %s, as the trait %s\n", clean(a.Name), clean(a.Destination), clean(a.Trait))
		}
		if err != nil || members == nil {
			return err
		}
		return syncMembers(ctx, c, id, args[0], members, *f.json, p)
	})
}

func syncAudience(o *options) action {
	destination := destinationFlag(o)
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		if len(args) != 2 {
			return usagef("want the name of the audience, and a file of its members")
		}
		members, err := openUpload(args[1], p)
		if err != nil {
			return err
		}
		defer members.Close()
		id, err := theDestination(ctx, c, *destination)
		if err != nil {
			return err
		}
		return syncMembers(ctx, c, id, args[0], members, *f.json, p)
	})
}

func syncMembers(ctx context.Context, c *api.Client, destination, name string, members *upload, asJSON bool, p process) error {
	end, err := follow(ctx, newMeter(p.screen(p.stderr), "read"), jsonOut(asJSON, p), members.part, c.SyncAudience(ctx, destination, name, members))
	if err != nil || asJSON {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s: %s joined, %s left\n", clean(name), grouped(end.Joined), grouped(end.Left))
	return err
}

func listAudiences(o *options) action {
	destination := o.text("destination", "", "only those of the destination with this `id`")
	query := o.StringP("query", "q", "", "only those with this `text` in their name")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, _ []string, p process) error {
		t := &table{columns: []column{{title: "DESTINATION"}, {title: "AUDIENCE", flexible: true}, {title: "TRAIT", spare: 1}, {title: "SYNCS", right: true}}}
		for a, err := range c.AllAudiences(ctx, api.AudienceFilter{Destination: *destination, Query: *query}) {
			switch {
			case err != nil:
				return err
			case *f.json:
				if err := printJSON(p.stdout, a); err != nil {
					return err
				}
			default:
				t.add(cell{clean(a.Destination), bold}, cell{clean(a.Name), normal}, cell{clean(a.Trait), normal},
					cell{strconv.FormatUint(a.Generation, 10), normal})
			}
		}
		if !*f.json {
			t.print(p.screen(p.stdout))
		}
		return nil
	})
}

func audienceMembers(o *options) action {
	destination := destinationFlag(o)
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, args []string, p process) error {
		if len(args) != 1 {
			return usagef("want the name of one audience; 'hookferry audience ls' lists them")
		}
		id, err := theDestination(ctx, c, *destination)
		if err != nil {
			return err
		}
		members, err := c.Members(ctx, id, args[0])
		if err != nil {
			return err
		}
		defer members.Close()
		s := p.screen(p.stdout)
		if !*f.json && !s.terminal {
			_, err := io.Copy(s, members)
			return err
		}
		scanner := bufio.NewScanner(members)
		for scanner.Scan() && err == nil {
			if *f.json {
				err = printJSON(s, scanner.Text())
			} else {
				_, err = fmt.Fprintln(s, clean(scanner.Text()))
			}
		}
		if err == nil {
			err = scanner.Err()
		}
		return err
	})
}
