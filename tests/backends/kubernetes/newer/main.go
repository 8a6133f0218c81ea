// An API server made of the libraries that kube-apiserver 1.36 is made of, for tests: its HTTP handling, audit log,
// admission policies (CEL) and webhooks, custom resources, pages, watches, dry runs and strict decoding are the real
// ones, on the types of k8s.io/api. It is no kube-apiserver: it neither defaults nor validates what is in a Pod or a
// Job, it knows no RBAC, and no controller runs. Debian packages the libraries, and not the server.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	generatedopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
)

// A resource of the API, stored as it is sent.
type resource struct {
	group, version, plural, singular string
	namespaced                       bool
	object, list                     runtime.Object
}

var resources = []resource{
	{"", "v1", "namespaces", "namespace", false, &corev1.Namespace{}, &corev1.NamespaceList{}},
	{"", "v1", "nodes", "node", false, &corev1.Node{}, &corev1.NodeList{}},
	{"", "v1", "pods", "pod", true, &corev1.Pod{}, &corev1.PodList{}},
	{"", "v1", "services", "service", true, &corev1.Service{}, &corev1.ServiceList{}},
	{"", "v1", "events", "event", true, &corev1.Event{}, &corev1.EventList{}},
	{"batch", "v1", "jobs", "job", true, &batchv1.Job{}, &batchv1.JobList{}},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "validatingadmissionpolicy", false,
		&admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyList{}},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "validatingadmissionpolicybinding", false,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}},
	{"admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "validatingwebhookconfiguration", false,
		&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{}},
	{"admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration", false,
		&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfigurationList{}},
}

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(batchv1.AddToScheme(scheme))
	utilruntime.Must(admissionregistrationv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	any := func(label, value string) (string, string, error) { return label, value, nil }
	for _, r := range resources {
		// The types of the API are their own internal form.
		internal := schema.GroupVersion{Group: r.group, Version: runtime.APIVersionInternal}
		scheme.AddKnownTypes(internal, r.object, r.list)
		kind := reflect.TypeOf(r.object).Elem().Name()
		utilruntime.Must(scheme.AddFieldLabelConversionFunc(
			schema.GroupVersion{Group: r.group, Version: r.version}.WithKind(kind), any))
	}
}

// strategy takes everything; a write of the whole keeps the status, one of the status keeps the rest.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced, status bool
}

func part(obj runtime.Object, name string) reflect.Value { return reflect.ValueOf(obj).Elem().FieldByName(name) }

func (s strategy) NamespaceScoped() bool { return s.namespaced }
func (s strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	if v := part(obj, "Status"); v.IsValid() {
		v.SetZero()
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.Status.Phase = corev1.PodPending
	}
}
func (s strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	for _, name := range []string{"Spec", "Status"} {
		if v := part(obj, name); v.IsValid() && (name == "Status") != s.status {
			v.Set(part(old, name))
		}
	}
}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList       { return nil }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string      { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) Canonicalize(runtime.Object)    {}
func (strategy) AllowCreateOnUpdate() bool      { return false }
func (strategy) AllowUnconditionalUpdate() bool { return true }

// store is the resource, with the singular's name that discovery asks for.
type store struct {
	*registry.Store
	singular string
}

func (s *store) GetSingularName() string { return s.singular }

// statusStore writes the status alone.
type statusStore struct{ *registry.Store }

func (s *statusStore) New() runtime.Object { return s.NewFunc() }
func (s *statusStore) Destroy()            {}
func (s *statusStore) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return s.Store.Get(ctx, name, o)
}

func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	switch o := obj.(type) {
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = o.Spec.NodeName, string(o.Status.Phase)
	case *corev1.Event:
		set["involvedObject.uid"], set["type"] = string(o.InvolvedObject.UID), o.Type
	}
	return m.GetLabels(), set, nil
}

func storeOf(r resource, getter generic.RESTOptionsGetter) (*store, *statusStore, error) {
	fresh := func(example runtime.Object) func() runtime.Object {
		t := reflect.TypeOf(example).Elem()
		return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
	}
	own := strategy{scheme, names.SimpleNameGenerator, r.namespaced, false}
	qualified := schema.GroupResource{Group: r.group, Resource: r.plural}
	s := &registry.Store{
		NewFunc:                   fresh(r.object),
		NewListFunc:               fresh(r.list),
		DefaultQualifiedResource:  qualified,
		SingularQualifiedResource: schema.GroupResource{Group: r.group, Resource: r.singular},
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
		},
		CreateStrategy: own, UpdateStrategy: own, DeleteStrategy: own,
		TableConvertor: rest.NewDefaultTableConvertor(qualified),
	}
	if err := s.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes}); err != nil {
		return nil, nil, err
	}
	status := *s
	own.status = true
	status.UpdateStrategy = own
	return &store{s, r.singular}, &statusStore{&status}, nil
}

// definitions of the types above are open: server-side apply then merges without knowing their lists.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	found := generatedopenapi.GetOpenAPIDefinitions(ref)
	open := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	open.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	for _, r := range resources {
		for _, o := range []runtime.Object{r.object, r.list} {
			found[openapiutil.GetCanonicalTypeName(o)] = common.OpenAPIDefinition{Schema: open}
		}
	}
	return found
}

func run() error {
	etcd := flag.String("etcd", "", "address of etcd")
	port := flag.Int("port", 0, "to listen on, at 127.0.0.1")
	certs := flag.String("certs", "", "folder for the server's certificate")
	tokens := flag.String("tokens", "", "CSV of tokens")
	policy := flag.String("audit-policy", "", "file")
	log := flag.String("audit-log", "", "file")
	flag.Parse()

	config := server.NewRecommendedConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.FeatureGate = utilfeature.DefaultFeatureGate
	versions := []schema.GroupVersion{corev1.SchemeGroupVersion, batchv1.SchemeGroupVersion, admissionregistrationv1.SchemeGroupVersion}
	etcdOptions := options.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", codecs.LegacyCodec(versions...)))
	etcdOptions.StorageConfig.Transport.ServerList = []string{*etcd}
	if err := etcdOptions.ApplyTo(&config.Config); err != nil {
		return err
	}
	serving := options.NewSecureServingOptions().WithLoopback()
	serving.BindAddress, serving.BindPort, serving.ServerCert.CertDirectory = net.ParseIP("127.0.0.1"), *port, *certs
	if err := serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{serving.BindAddress}); err != nil {
		return err
	}
	if err := serving.ApplyToConfig(&config.Config); err != nil {
		return err
	}
	known, err := tokenfile.NewCSV(*tokens)
	if err != nil {
		return err
	}
	config.Authentication.Authenticator = bearertoken.New(known)
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	audit := options.NewAuditOptions()
	audit.PolicyFile, audit.LogOptions.Path = *policy, *log
	if err := audit.ApplyTo(&config.Config); err != nil {
		return err
	}
	namer := openapinamer.NewDefinitionNamer(scheme, apiextensions.Scheme)
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, namer)
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return err
	}
	config.ClientConfig = config.LoopbackClientConfig
	config.SharedInformerFactory = informers.NewSharedInformerFactory(client, 10*time.Minute)
	admission := options.NewAdmissionOptions()
	admission.DisablePlugins = []string{"MutatingAdmissionPolicy"}
	if err := admission.ApplyTo(&config.Config, config.SharedInformerFactory, client, dynamicClient,
		config.FeatureGate, config.EffectiveVersion); err != nil {
		return err
	}
	extensions, err := customResources(config, *etcdOptions, namer)
	if err != nil {
		return err
	}
	s, err := config.Complete().New("torchx-tests", extensions.GenericAPIServer)
	if err != nil {
		return err
	}
	groups := map[string]*server.APIGroupInfo{}
	for _, r := range resources {
		if groups[r.group] == nil {
			info := server.NewDefaultAPIGroupInfo(r.group, scheme, metav1.ParameterCodec, codecs)
			info.PrioritizedVersions = []schema.GroupVersion{{Group: r.group, Version: r.version}}
			info.VersionedResourcesStorageMap[r.version] = map[string]rest.Storage{}
			groups[r.group] = &info
		}
		whole, status, err := storeOf(r, config.RESTOptionsGetter)
		if err != nil {
			return err
		}
		at := groups[r.group].VersionedResourcesStorageMap[r.version]
		at[r.plural] = whole
		if part(r.object, "Status").IsValid() {
			at[r.plural+"/status"] = status
		}
	}
	for group, info := range groups {
		if group == "" {
			err = s.InstallLegacyAPIGroup("/api", info)
		} else {
			err = s.InstallAPIGroup(info)
		}
		if err != nil {
			return err
		}
	}
	s.AddPostStartHookOrDie("start-informers", func(c server.PostStartHookContext) error {
		config.SharedInformerFactory.Start(c.Done())
		go listGroups(c, s, extensions)
		return nil
	})
	return s.PrepareRun().RunWithContext(server.SetupSignalContext())
}

func customResources(base *server.RecommendedConfig, etcd options.EtcdOptions, namer *openapinamer.DefinitionNamer) (*apiextensions.CustomResourceDefinitions, error) {
	own := *base
	own.PostStartHooks = map[string]server.PostStartHookConfigEntry{}
	own.Serializer = apiextensions.Codecs
	etcd.StorageConfig.Codec = apiextensions.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	own.RESTOptionsGetter = nil
	if err := etcd.ApplyTo(&own.Config); err != nil {
		return nil, err
	}
	enablement := options.NewAPIEnablementOptions()
	if err := enablement.ApplyTo(&own.Config, apiextensions.DefaultAPIResourceConfigSource(), apiextensions.Scheme); err != nil {
		return nil, err
	}
	config := apiextensions.Config{
		GenericConfig: &own,
		ExtraConfig: apiextensions.ExtraConfig{
			CRDRESTOptionsGetter: apiextensionsoptions.NewCRDRESTOptionsGetter(etcd, own.ResourceTransformers, own.StorageObjectCountTracker),
			MasterCount:          1,
			ServiceResolver:      webhook.NewDefaultServiceResolver(),
			AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, own.LoopbackClientConfig, noopoteltrace.NewTracerProvider()),
		},
	}
	return config.Complete().New(server.NewEmptyDelegate())
}

// listGroups shows the groups of custom resources below /apis, which is what an aggregator does.
func listGroups(c server.PostStartHookContext, s *server.GenericAPIServer, extensions *apiextensions.CustomResourceDefinitions) {
	shown := map[string]bool{}
	lister := extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	for {
		select {
		case <-c.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		there := map[string]bool{}
		all, _ := lister.List(labels.Everything())
		for _, crd := range all {
			group := crd.Spec.Group
			there[group] = true
			if !shown[group] {
				version := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + crd.Spec.Versions[0].Name, Version: crd.Spec.Versions[0].Name}
				s.DiscoveryGroupManager.AddGroup(metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
				shown[group] = true
			}
		}
		for group := range shown {
			if !there[group] {
				s.DiscoveryGroupManager.RemoveGroup(group)
				delete(shown, group)
			}
		}
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
