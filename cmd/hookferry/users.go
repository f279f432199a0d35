package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// editAudience returns an action that makes the users in a file the members of an audience. With
// create, it creates the audience first, and there need be no file.
func editAudience(c *command, create bool) action {
	destination := c.soleDestination()
	shrink := c.set.Bool("allow-shrink", false, "let more than half of the members leave")
	return c.admin(func(ctx context.Context) (err error) {
		// The steps that change nothing come first. If one of them fails, the server is as before.
		var members *input
		if len(c.args) == 2 {
			if members, err = c.open(c.args[1]); err != nil {
				return err
			}
			defer members.Close()
		}
		id, err := destination(ctx)
		if err != nil {
			return err
		}
		name := c.args[0]
		if create {
			r := api.Request{Method: http.MethodPost, Path: api.AudiencesPath, Body: api.Audience{Destination: id, Name: name}}
			err := request(ctx, c, r, func(s screen, a api.Audience) {
				s.print("%s created for %s, as the trait %s", a.Name, a.Destination, a.Trait)
			})
			if err != nil || members == nil {
				return err
			}
		}
		r := api.Request{Method: http.MethodPut, Path: api.Path(api.MembersPath, id, name), Body: members}
		if *shrink {
			r.Query = url.Values{api.ParamAllowShrink: {"true"}}
		}
		end, err := c.work(ctx, "read", r)
		if err != nil || c.json {
			return err
		}
		return c.print(end, "%s: %s joined, %s left", name, grouped(end.Joined), grouped(end.Left))
	})
}

func listAudiences(c *command) action {
	t := &table{columns: []column{
		{title: "DESTINATION"}, {title: "AUDIENCE", flexible: true}, {title: "TRAIT", spare: 1}, {title: "SYNCS", right: true},
	}}
	return list(c, at(api.AudiencesPath), 1_000_000, t, func(a api.Audience, _ time.Time) []any {
		return []any{cell{a.Destination, bold}, a.Name, a.Trait, strconv.FormatUint(a.Generation, 10)}
	}, api.ParamDestination, api.ParamQuery)
}

func audienceMembers(c *command) action {
	destination := c.soleDestination()
	return c.admin(func(ctx context.Context) error {
		id, err := destination(ctx)
		if err != nil {
			return err
		}
		members, err := c.client.Open(ctx, api.Request{Path: api.Path(api.MembersPath, id, c.args[0])})
		if err != nil {
			return err
		}
		defer members.Close()
		if !c.json && !c.process.screen(c.process.stdout).terminal {
			_, err := io.Copy(c.process.stdout, members)
			return err
		}
		scanner := bufio.NewScanner(members)
		for scanner.Scan() && err == nil {
			err = c.print(scanner.Text(), "%s", scanner.Text())
		}
		if err == nil {
			err = scanner.Err()
		}
		return err
	})
}

func deleteUsers(c *command) action {
	id := c.set.String("id", "", "`name` of the request; under the same name it is the same request")
	sources := c.set.StringArray("source", nil, "`name` of a source that is affected; may be repeated; all, if it is left out")
	file := c.set.String("file", "", "`file` of users, one a line; - is standard input")
	return c.admin(func(ctx context.Context) error {
		if (len(c.args) == 0) == (*file == "") {
			return usagef("want ids of users, or --file; one of them")
		}
		r := api.Request{Method: http.MethodPost, Path: api.DeletionsPath, Body: api.Deletion{ID: *id, Users: c.args, Sources: *sources}}
		if *file != "" {
			users, err := c.open(*file)
			if err != nil {
				return err
			}
			defer users.Close()
			r.Body = users
			r.Query = url.Values{api.ParamSource: *sources}
			if *id != "" {
				r.Query.Set(api.ParamID, *id)
			}
		}
		end, err := c.work(ctx, "told", r)
		if err != nil || c.json {
			return err
		}
		return c.print(end, "deletion of %s on its way", counted(end.Done, "user"))
	})
}

func eraseUsers(c *command) action {
	c.yesFlag()
	return c.admin(func(ctx context.Context) error {
		if err := c.confirm(ctx, "erase what is stored of %s?", counted(len(c.args), "user")); err != nil {
			return err
		}
		for _, user := range c.args {
			r := api.Request{Method: http.MethodPost, Path: api.ErasuresPath, Body: api.Erasure{User: user}, Timeout: api.StoreTimeout}
			err := request(ctx, c, r, func(s screen, e api.Erased) {
				left := ""
				if e.Claimed > 0 {
					left = fmt.Sprintf(", %d left that are being attempted; say it again", e.Claimed)
				}
				s.print("%s: %d erased%s", user, e.Erased, left)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", user, err)
			}
		}
		return nil
	})
}
