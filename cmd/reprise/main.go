// Command reprise compiles models to programs that train or run within a number of bytes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/internal/trace"
	"reprise/runtime/exe"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var drivers exe.Drivers
	a := &app{out: os.Stdout, err: os.Stderr, drivers: &drivers, objects: &cpu.Objects{}}
	status := a.run(ctx, os.Args[1:])
	_ = drivers.Close()
	os.Exit(status)
}

// app is what the commands share: the streams, whether output is JSON, and what a command that compiles several
// programs makes once for all.
type app struct {
	out, err io.Writer
	json     bool
	drivers  *exe.Drivers
	objects  *cpu.Objects
}

// make compiles a model to out.
func (a *app) make(ctx context.Context, m *frontend.Model, opt compile.Options, out string) (*compile.Program, error) {
	opt.Drivers, opt.Objects = a.drivers, a.objects
	return compile.Make(ctx, m, opt, out)
}

// usageError is a wrong use of the command line: exit status 2.
type usageError struct{ error }

// run is the command without the process around it. It returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := func() (err error) {
		defer diag.Recovered(&err)
		return root.ExecuteContext(ctx)
	}()
	if err == nil {
		return 0
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	if strings.HasPrefix(err.Error(), "unknown command ") { // cobra's, which has no type
		var names []string
		for _, c := range root.Commands() {
			names = append(names, c.Name())
		}
		err = usageError{diag.Errorf("usage", "%v", err).WithHint("commands: %s", strings.Join(names, ", "))}
	}
	var usage usageError
	if errors.As(err, &usage) {
		a.json = a.json || slices.Contains(args, "--json") // a wrong flag may stand before it
		d := *diag.As(usage.error)
		d.Code = "usage"
		if d.Hint == "" {
			d.Hint = "flags and examples: " + strings.TrimSuffix("reprise "+called(root, args), " ") + " --help"
		}
		a.report(&d)
		return 2
	}
	if ctx.Err() != nil {
		fmt.Fprintln(a.err, "reprise: interrupted")
		return 130
	}
	a.report(reproducer(err))
	return 1
}

// called is the command that arguments name, "" where they name none.
func called(root *cobra.Command, args []string) string {
	if c, _, err := root.Find(args); err == nil && c != root {
		return c.Name()
	}
	return ""
}

// exitStatus ends the command with a status after it has said why.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// report prints an error for a person, or as the JSON document on stdout.
func (a *app) report(err error) {
	d := *diag.As(err)
	if d.Code == "parse" && d.Hint == "" {
		d.Hint = "docs/ir.md has the text form"
	}
	if !a.json {
		fmt.Fprintf(a.err, "reprise: %v\n", &d)
		return
	}
	doc := struct {
		*diag.Error
		MinBudget  int64             `json:"min_budget_bytes,omitempty"`
		LowerBound int64             `json:"lower_bound_bytes,omitempty"`
		Peak       *compile.Peak     `json:"peak,omitempty"`
		Binding    []compile.Binding `json:"binding,omitempty"`
		Divergence *trace.Divergence `json:"divergence,omitempty"`
	}{Error: &d}
	errors.As(err, &doc.Divergence)
	var b *compile.BudgetError
	if errors.As(err, &b) {
		doc.MinBudget, doc.LowerBound, doc.Peak, doc.Binding = b.MinBudget, b.LowerBound, b.Peak, b.Binding
	}
	a.print(map[string]any{"error": doc})
}

// warn prints a report's warnings.
func (a *app) warn(r compile.Report) {
	for _, w := range r.Warnings {
		fmt.Fprintf(a.err, "reprise: warning: %s\n", w)
	}
	if r.Policy != nil {
		for _, w := range r.Policy.Warnings {
			fmt.Fprintf(a.err, "reprise: warning: %s\n", w)
		}
	}
}

// print writes one JSON document.
func (a *app) print(doc any) {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		fmt.Fprintf(a.err, "reprise: %v\n", err)
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "reprise",
		Short: "Compile models to programs that train or run within a number of bytes, with the same bits as if everything were kept",
		Long: `Reprise takes a model and a number of bytes and gives back a program that trains, or
runs, within those bytes, with the same bits as the program that keeps everything, and a
proof of how close to optimal its plan is.

MODEL is a builtin (builtin:gpt,layers=2 …: see "reprise models") or a file in the
text form of the IR (.ir). Budgets are bytes (512MiB, 1.5GB), a share of what keeping
everything takes (60%), min, or fit: what this machine has free.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON document on stdout")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		text, _, numeric := strings.Cut(err.Error(), ": strconv.") // what Go's parser says is for programmers
		if numeric {
			err = errors.New(text + ": want a number")
		}
		return usageError{err}
	})
	root.AddCommand(a.compileCmd(), a.planCmd(), a.checkCmd(), a.runCmd(), a.trainCmd(), a.verifyCmd(), a.explainCmd(), a.optCmd(),
		a.modelsCmd(), a.policiesCmd(), a.benchCmd(), a.doctorCmd(), a.demoCmd())
	return root
}

// args wraps a check of positional arguments, so that a wrong number is wrong usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, list []string) error {
		if err := check(cmd, list); err != nil {
			return usageError{fmt.Errorf("%s: %w\nusage: %s", cmd.Name(), err, cmd.UseLine())}
		}
		return nil
	}
}
