// One program for the lab's control plane: the name it is called by selects the component.
// One binary shares the packages that all five have in common, which more than halves build time and disk.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	servers := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	name := filepath.Base(os.Args[0])
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kubectl":
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	default:
		newCommand, known := servers[name]
		if !known {
			fmt.Fprintf(os.Stderr, "%s: call this program as etcd, kubectl, kube-apiserver, kube-controller-manager or kube-scheduler\n", name)
			os.Exit(2)
		}
		os.Exit(cli.Run(newCommand()))
	}
}
