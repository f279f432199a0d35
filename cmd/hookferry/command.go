package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitNothing = 3
)

// A process is what the operating system gives a command.
type process struct {
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
	// listen and dial are those of its network. Nil means the system's.
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// transport returns an HTTP transport on the network of the process.
func (p process) transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if p.dial != nil {
		t.DialContext = p.dial
	}
	return t
}

// commands returns "hookferry" with all commands below it.
func (p process) commands() *cobra.Command {
	root := group("hookferry", "", rootHelp,
		p.command("serve", "accept calls and forward them to webhooks", serveHelp, serve),
		p.command("listen", "receive webhooks and print them", listenHelp, listen),
		group("send", "send one call", sendHelp, p.sendCommands()...),
		p.command("status", "print how a running server is", statusHelp, status),
		p.command("health", "ask a running server whether it accepts calls", healthHelp, health),
		p.command("events", "print what happens to deliveries", eventsHelp, events),
		p.command("test [DESTINATION|URL]", "send samples to a destination or URL now", testHelp, test),
		p.command("pause DESTINATION...", "stop attempts for destinations", pauseHelp, pause),
		p.command("resume DESTINATION...", "end the pause of destinations", resumeHelp, resume),
		group("destination", "show, make, change or delete destinations", destinationHelp,
			p.command("show DESTINATION", "print the settings of a destination", destinationShowHelp, showDestination),
			p.command("set DESTINATION FILE", "make a destination, or replace it", destinationSetHelp, setDestination),
			p.command("change DESTINATION FILE", "change some settings of a destination", destinationChangeHelp, changeDestination),
			p.command("disable DESTINATION...", "keep what is for destinations until enable", destinationDisableHelp, disableDestination),
			p.command("enable DESTINATION...", "deliver to destinations again", destinationEnableHelp, enableDestination),
			p.command("rotate DESTINATION", "replace the secret of a destination in two steps", destinationRotateHelp, rotateSecret),
			p.command("delete DESTINATION", "delete a destination", destinationDeleteHelp, deleteDestination)),
		group("waiting", "list, retry or discard what waits", waitingHelp,
			p.command("ls DESTINATION", "list what waits for a destination", waitingListHelp, listWaiting),
			p.command("retry DESTINATION", "attempt now what waits for a later time", waitingRetryHelp, retryWaiting),
			p.command("discard DESTINATION", "remove what waits for good", waitingDiscardHelp, discardWaiting)),
		group("delivered", "list what was delivered, or send it again", deliveredHelp,
			p.command("ls", "list what was delivered and is kept, the latest first", deliveredListHelp, listDelivered),
			p.command("resend", "send again what was delivered", deliveredResendHelp, resendDelivered)),
		group("dead", "list, show, replay or discard dead letters", deadHelp,
			p.command("ls", "list dead letters, the newest first", deadListHelp, listDead),
			p.command("show KEY", "print all of a dead letter", deadShowHelp, showDead),
			p.command("replay [KEY...]", "deliver dead letters again", deadReplayHelp, replayDead),
			p.command("discard [KEY...]", "remove dead letters for good", deadDiscardHelp, discardDead)),
		group("audience", "create, sync or list audiences", audienceHelp,
			p.command("create NAME [FILE]", "register an audience", audienceCreateHelp, createAudience),
			p.command("sync NAME FILE", "make the members of an audience those of a file", audienceSyncHelp, syncAudience),
			p.command("ls", "list the audiences", audienceListHelp, listAudiences),
			p.command("members NAME", "print the members of an audience", audienceMembersHelp, audienceMembers)),
		p.command("delete-user [USER...]", "tell destinations to delete users", deleteUserHelp, deleteUsers),
		p.command("erase-user USER...", "remove what is stored of users", eraseUserHelp, eraseUsers),
		group("config", "check a configuration file, or print an example", configHelp,
			p.command("check FILE", "print all that is wrong with a configuration file", configCheckHelp, checkConfig),
			p.command("example", "print a file that explains every key", configExampleHelp, exampleConfig)),
		group("store", "check or rescue what serve keeps", storeHelp,
			p.command("check", "read all of the store, and print what it holds and what is missing", storeCheckHelp, checkStore),
			p.command("rescue", "write what can be read of a damaged store to a new folder", storeRescueHelp, rescueStore),
			p.command("sql", "print what makes the tables of a PostgreSQL database", storeSQLHelp, storeSQL)),
		group("key", "make keys for signatures that a public key verifies", keyHelp,
			p.command("new FILE", "write a private key to a new file, and print its public key", keyNewHelp, newKey),
			p.command("public FILE", "print the public key of a private one", keyPublicHelp, publicKey)),
		p.command("version", "print the version", versionHelp, printVersion))
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
		shell.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unexpected(c, args[0])
			}
			return nil
		}
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

const rootHelp = `Hookferry accepts analytics calls and forwards each as a signed webhook.

Try it, in three terminals:
  hookferry listen
  hookferry serve --webhook http://localhost:9000/hook
  hookferry send track --user u1 --event "Signed Up"

'hookferry COMMAND -h' explains a command.
Exit status: 0 done, 1 failed, 2 called wrongly, 3 what was asked for is not
there.
`

// writeHelp prints the help of c for terminals of 80 columns. A template of cobra would do, but
// links text/template, and with it every method of every type.
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
	flags := c.LocalFlags().FlagUsagesWrapped(80)
	flags = strings.ReplaceAll(flags, "[=true|false]", "             ") // a switch is given or not; the columns stay
	fmt.Fprintf(out, "\nFlags, and the environment variables that stand in for them:\n%s", flags)
}

// group returns a command that has others below it and does nothing itself.
func group(name, short, long string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long}
	c.AddCommand(below...)
	return wantCommand(c)
}

// wantCommand makes it an error to call c without one of the commands below it.
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

// unexpected says that c has no place for an argument.
func unexpected(c *cobra.Command, arg string) error {
	if !c.HasSubCommands() {
		return usagef("unexpected argument %q", arg)
	}
	c.SuggestionsMinimumDistance = 2
	if meant := c.SuggestionsFor(arg); len(meant) > 0 {
		return usagef("no command %q; did you mean %s?", arg, strings.Join(meant, " or "))
	}
	return usagef("no command %q; there are %s", arg, names(c))
}

// names lists the commands below c.
func names(c *cobra.Command) string {
	var list []string
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			list = append(list, below.Name())
		}
	}
	return strings.Join(list, ", ")
}

// A usageError is a mistake in how a command was called.
type usageError struct{ problem string }

func (e *usageError) Error() string { return e.problem }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// flagError makes an error of pflag a usageError.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "=")
		if c.Flags().Lookup(name) != nil {
			return usagef("no flag -%s; did you mean --%[1]s?", name)
		}
		given := "-" + name
		if name == "" {
			name = unknown.GetSpecifiedName()
			given = "--" + name
		}
		if meant := flagsLike(c, name); len(meant) > 0 {
			return usagef("no flag %s; did you mean --%s?", given, strings.Join(meant, " or --"))
		}
		return usagef("no flag %s", given)
	}
	return &usageError{err.Error()}
}

// flagsLike returns the flags of c that name may be a slip of. They are found as commands are.
func flagsLike(c *cobra.Command, name string) []string {
	list := &cobra.Command{SuggestionsMinimumDistance: 2}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			list.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return list.SuggestionsFor(name)
}

// A nothingError says that what a command was to work on is not there.
type nothingError struct{ error }

func (e *nothingError) Unwrap() error { return e.error }

// run runs the command that args name, and returns the exit status.
func run(ctx context.Context, args []string, p process) int {
	root := p.commands()
	if len(args) == 0 {
		root.SetOut(p.stderr)
		root.Help()
		return exitUsage
	}
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	// An error may say what a server answered.
	fmt.Fprintf(p.stderr, "%s: %s\n", c.CommandPath(), cleanLines(inVariables(c, err)))
	var usage *usageError
	var nothing *nothingError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(p.stderr, "Run '%s -h' for help.\n", c.CommandPath())
		return exitUsage
	case errors.As(err, &nothing):
		return exitNothing
	}
	return exitFailure
}
