package main

import (
	_ "embed"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// actions has the action of each command, by the command's words.
var actions = map[string]func(*command) action{
	"serve":               serve,
	"listen":              listen,
	"probe":               probe,
	"send track":          func(c *command) action { return send(c, new(analytics.Track)) },
	"send identify":       func(c *command) action { return send(c, new(analytics.Identify)) },
	"send page":           func(c *command) action { return send(c, new(analytics.Page)) },
	"send screen":         func(c *command) action { return send(c, new(analytics.Screen)) },
	"send group":          func(c *command) action { return send(c, new(analytics.Group)) },
	"send alias":          func(c *command) action { return send(c, new(analytics.Alias)) },
	"send event":          sendEvent,
	"status":              status,
	"health":              health,
	"events":              events,
	"test":                test,
	"pause":               func(c *command) action { return eachDestination(c, "paused", api.PausePath, nil) },
	"resume":              func(c *command) action { return eachDestination(c, "resumed", api.ResumePath, nil) },
	"destination show":    func(c *command) action { return call(c, http.MethodGet, api.DestinationPath, nil, writeDestination) },
	"destination set":     func(c *command) action { return editDestination(c, http.MethodPut, "set") },
	"destination change":  func(c *command) action { return editDestination(c, http.MethodPatch, "changed") },
	"destination disable": func(c *command) action { return switchDestinations(c, "disabled", false) },
	"destination enable":  func(c *command) action { return switchDestinations(c, "enabled", true) },
	"destination rotate":  rotateSecret,
	"destination delete":  deleteDestination,
	"tenant ls":           listTenants,
	"tenant show":         func(c *command) action { return call(c, http.MethodGet, api.TenantPath, nil, writeTenant) },
	"tenant create":       createTenant,
	"tenant disable":      func(c *command) action { return switchTenant(c, "disabled", true) },
	"tenant enable":       func(c *command) action { return switchTenant(c, "enabled", false) },
	"tenant delete":       deleteTenant,
	"deliveries ls":       listDeliveries,
	"deliveries show":     showDelivery,
	"deliveries retry": func(c *command) action {
		return changeDeliveries(c, "retry", "retried", api.RetryPath, api.TenantRetryPath)
	},
	"deliveries discard": func(c *command) action {
		return changeDeliveries(c, "discard", "discarded", api.DiscardPath, api.TenantDiscardPath)
	},
	"tenant destination ls": listTenantDestinations,
	"tenant destination show": func(c *command) action {
		return call(c, http.MethodGet, api.TenantDestinationPath, nil, writeTenantDestination)
	},
	"tenant destination create":  createTenantDestination,
	"tenant destination change":  changeTenantDestination,
	"tenant destination disable": func(c *command) action { return switchTenantDestination(c, "disabled", true) },
	"tenant destination enable":  func(c *command) action { return switchTenantDestination(c, "enabled", false) },
	"tenant destination rotate": func(c *command) action {
		return call(c, http.MethodPost, api.TenantRotatePath, nil, writeNewSecret, api.ParamBy, api.ParamOverlap)
	},
	"tenant destination delete": deleteTenantDestination,
	"tenant portal":             tenantPortal,
	"tenant token ls":           listTokens,
	"tenant token create":       createToken,
	"tenant token revoke":       revokeToken,
	"audience create":           func(c *command) action { return editAudience(c, true) },
	"audience sync":             func(c *command) action { return editAudience(c, false) },
	"audience ls":               listAudiences,
	"audience members":          audienceMembers,
	"delete-user":               deleteUsers,
	"erase-user":                eraseUsers,
	"config check":              checkConfig,
	"config example":            exampleConfig,
	"store check":               checkStore,
	"store rescue":              rescueStore,
	"store sql":                 storeSQL,
	"key new":                   newKey,
	"key public":                publicKey,
	"version":                   printVersion,
}

// help has the text of each command, after a line "## USE: SUMMARY".
//
//go:embed help.txt
var help string

// commands returns the command "hookferry" with those below it, one for each section of help.txt. A
// section for which actions has no entry is a group of commands.
func (p process) commands() *cobra.Command {
	byWords := map[string]*cobra.Command{}
	for section := range strings.SplitSeq(strings.TrimPrefix(help, "## "), "\n## ") {
		title, text, _ := strings.Cut(section, "\n")
		use, summary, _ := strings.Cut(title, ": ")
		c := &cobra.Command{Short: summary, Long: text}
		if summary != "" {
			c.Long = strings.ToUpper(summary[:1]) + summary[1:] + ".\n\n" + strings.TrimLeft(text, "\n")
		}
		fields := strings.Fields(use) // the words of the command, then its arguments
		n := 1
		for n < len(fields) && unicode.IsLower(rune(fields[n][0])) {
			n++
		}
		c.Use = strings.Join(fields[n-1:], " ")
		words := strings.Join(fields[:n], " ")
		if do := actions[words]; do != nil {
			p.define(c, do)
		} else {
			wantCommand(c)
		}
		if len(byWords) == 0 { // the first section is the root
			words = ""
		} else {
			byWords[strings.Join(fields[:n-1], " ")].AddCommand(c)
		}
		byWords[words] = c
	}
	root := byWords[""]
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = version()
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetHelpFunc(writeHelp)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	wantCommand(completion).Short = "print a script that completes words in a shell"
	for _, shell := range completion.Commands() {
		shell.Args = checkArguments
	}
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Use, help.Short, help.Run = "help [COMMAND...]", "explain a command", nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		c, rest, _ := root.Find(args)
		if len(rest) > 0 {
			return unexpected(c, rest[0])
		}
		c.InitDefaultHelpFlag()
		return c.Help()
	}
	return root
}

// wantCommand makes c return an error if the user names no command below c.
func wantCommand(c *cobra.Command) *cobra.Command {
	c.Use += " COMMAND"
	c.Args, c.DisableFlagsInUseLine = cobra.ArbitraryArgs, true
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unexpected(c, args[0])
		}
		return usagef("want a command: %s", names(c))
	}
	return c
}

// writeHelp prints the help of c for 80 columns. It does not use cobra's templates, because with
// text/template the linker keeps every exported method.
func writeHelp(c *cobra.Command, _ []string) {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "Usage: %s\n\n%s\n", c.UseLine(), strings.TrimRight(c.Long, "\n"))
	if c.HasAvailableSubCommands() {
		fmt.Fprintln(out, "\nCommands:")
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() || below.Name() == "help" {
			fmt.Fprintf(out, "  %-*s %s\n", below.NamePadding(), below.Name(), below.Short)
		}
	}
	if c.HasParent() && c.HasAvailableSubCommands() {
		fmt.Fprintln(out, "\nExamples:")
		for _, below := range c.Commands() {
			_, examples, _ := strings.Cut(below.Long, "Examples:\n")
			first, _, _ := strings.Cut(examples, "\n")
			fmt.Fprintln(out, first)
		}
	}
	flags := c.LocalFlags().FlagUsagesWrapped(80)
	// Users need no hint that a switch takes a value. The spaces keep the columns aligned.
	flags = strings.ReplaceAll(flags, "[=true|false]", "             ")
	fmt.Fprintf(out, "\nFlags, and the environment variables that stand in for them:\n%s\n", strings.TrimRight(flags, "\n"))
}
