package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

func exampleConfig(c *command) action {
	return func(context.Context) error {
		_, err := io.WriteString(c.process.stdout, config.Example())
		return err
	}
}

// A checkedConfig is the JSON output of the command "config check".
type checkedConfig struct {
	File         string           `json:"file"`
	OK           bool             `json:"ok"`
	Sources      int              `json:"sources"`
	Destinations int              `json:"destinations"`
	Problems     []config.Problem `json:"problems"`
}

func checkConfig(c *command) action {
	c.jsonFlag()
	return func(context.Context) error {
		file := c.args[0]
		s, err := config.Load(file, c.process.getenv, nil)
		if wrong, ok := errors.AsType[*config.Error](err); ok {
			err = c.output(checkedConfig{File: file, Problems: wrong.Problems}, func(s screen) { fmt.Fprintln(s, wrong) })
			return errors.Join(err, errors.New("the configuration is not valid"))
		}
		checked := checkedConfig{File: file, OK: true, Sources: len(s.Sources), Destinations: len(s.Destinations), Problems: []config.Problem{}}
		return c.print(checked, "%s: good; sources: %d, destinations: %d", file, checked.Sources, checked.Destinations)
	}
}
