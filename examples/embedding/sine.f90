! gpunn from Fortran 2003: learns y = sin(x) on -3 .. 3 and says how far off it is at points it has not seen.
!
!     cc -O3 -march=native -c examples/embedding/gpunn.c -I.
!     gfortran -O2 examples/embedding/sine.f90 gpunn.o -lm -lpthread -o sine && ./sine
!
! What C calls by a macro is here the function with "_" behind its name. Its last argument is a struct by value, all zeros but for what
! is meant. Fortran's x(features, batch) is C's x[batch][features]. The program holds doubles; gpunn computes in floats.
!
! Expect: the largest error at 100 unseen points, about 0.01.
! Time:   less than a second on two cores.
! Next:   declare other functions of gpunn.h beside those of the interface, and learn a table of your own.
module gpunn
    use, intrinsic :: iso_c_binding
    implicit none
    integer(c_int), parameter :: GPUNN_VERSION_NUMBER = 2, GPUNN_OK = 0, GPUNN_F64 = 8
    integer(c_int64_t), parameter :: GPUNN_BATCH = -1

    type, bind(C) :: gpunn_shape
        integer(c_int64_t) :: dim(8) = 0
    end type
    type, bind(C) :: gpunn_device_args
        integer(c_int)     :: args_ = GPUNN_VERSION_NUMBER, type = 0, index = 0
        integer(c_int64_t) :: seed = 0
        integer(c_int)     :: threads = 0
        logical(c_bool)    :: deterministic = .false., benchmark = .false.
        integer(c_size_t)  :: memory_limit = 0, workspace_limit = 0
        type(c_ptr)        :: stream = c_null_ptr
        type(c_funptr)     :: cuda_malloc_fn = c_null_funptr, cuda_free_fn = c_null_funptr
        type(c_funptr)     :: realloc_fn = c_null_funptr, log_fn = c_null_funptr, parallel_fn = c_null_funptr
        type(c_ptr)        :: user = c_null_ptr, backend = c_null_ptr
    end type
    type, bind(C) :: gpunn_model_args
        integer(c_int) :: args_ = GPUNN_VERSION_NUMBER, precision = 0
        logical(c_bool) :: inference = .false.
    end type
    type, bind(C) :: gpunn_linear_args
        integer(c_int)  :: args_ = GPUNN_VERSION_NUMBER, out_features = 0
        logical(c_bool) :: no_bias = .false.
        type(c_ptr)     :: weight = c_null_ptr, bias = c_null_ptr
    end type
    type, bind(C) :: gpunn_loss_args
        integer(c_int)  :: args_ = GPUNN_VERSION_NUMBER, reduction = 0
        real(c_float)   :: delta = 0, beta = 0
        type(c_ptr)     :: weight = c_null_ptr, pos_weight = c_null_ptr
        logical(c_bool) :: log_target = .false., full = .false.
        real(c_float)   :: eps = 0
        logical(c_bool) :: no_log_input = .false.
    end type
    type, bind(C) :: gpunn_adam_args
        integer(c_int)  :: args_ = GPUNN_VERSION_NUMBER
        real(c_float)   :: lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0
        logical(c_bool) :: maximize = .false.
        type(c_ptr)     :: parameters = c_null_ptr
        integer(c_int)  :: parameter_count = 0
        type(c_ptr)     :: prefix = c_null_ptr, groups = c_null_ptr
        integer(c_int)  :: group_count = 0
    end type
    type, bind(C) :: gpunn_train_step_args
        integer(c_int) :: args_ = GPUNN_VERSION_NUMBER, accumulate = 0
    end type

    interface
        type(c_ptr) function gpunn_device_open(args) bind(C, name='gpunn_device_open_')
            import
            type(gpunn_device_args), value :: args
        end function
        type(c_ptr) function gpunn_model_create(dev, args) bind(C, name='gpunn_model_create_')
            import
            type(c_ptr), value :: dev
            type(gpunn_model_args), value :: args
        end function
        type(c_ptr) function gpunn_input(model, name, dtype, shape) bind(C)
            import
            type(c_ptr), value :: model
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: dtype
            type(gpunn_shape), value :: shape
        end function
        type(c_ptr) function gpunn_linear(x, name, args) bind(C, name='gpunn_linear_')
            import
            type(c_ptr), value :: x
            character(kind=c_char), intent(in) :: name(*)
            type(gpunn_linear_args), value :: args
        end function
        type(c_ptr) function gpunn_tanh(x) bind(C)
            import
            type(c_ptr), value :: x
        end function
        type(c_ptr) function gpunn_mse_loss(input, target, args) bind(C, name='gpunn_mse_loss_')
            import
            type(c_ptr), value :: input, target
            type(gpunn_loss_args), value :: args
        end function
        type(c_ptr) function gpunn_adam(model, args) bind(C, name='gpunn_adam_')
            import
            type(c_ptr), value :: model
            type(gpunn_adam_args), value :: args
        end function
        integer(c_int) function gpunn_set_dtype(t, dtype) bind(C)
            import
            type(c_ptr), value :: t
            integer(c_int), value :: dtype
        end function
        integer(c_int) function gpunn_write(t, host, bytes) bind(C)
            import
            type(c_ptr), value :: t
            real(c_double), intent(in) :: host(*)
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function gpunn_read(t, host, bytes) bind(C)
            import
            type(c_ptr), value :: t
            real(c_double), intent(out) :: host(*)
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function gpunn_train_step(opt, loss, args) bind(C, name='gpunn_train_step_')
            import
            type(c_ptr), value :: opt, loss
            type(gpunn_train_step_args), value :: args
        end function
        integer(c_int) function gpunn_forward(outputs, count) bind(C)
            import
            type(c_ptr), intent(in) :: outputs(*)
            integer(c_int), value :: count
        end function
        type(c_ptr) function gpunn_error(dev) bind(C)
            import
            type(c_ptr), value :: dev
        end function
        subroutine gpunn_optimizer_destroy(opt) bind(C)
            import
            type(c_ptr), value :: opt
        end subroutine
        subroutine gpunn_model_destroy(model) bind(C)
            import
            type(c_ptr), value :: model
        end subroutine
        subroutine gpunn_device_close(dev) bind(C)
            import
            type(c_ptr), value :: dev
        end subroutine
    end interface
contains
    function shape_of(dim) result(shape)
        integer(c_int64_t), intent(in) :: dim(:)
        type(gpunn_shape) :: shape
        shape%dim(:size(dim)) = dim
    end function

    subroutine check(dev, status)
        type(c_ptr), intent(in) :: dev
        integer(c_int), intent(in) :: status
        character(kind=c_char), pointer :: text(:)
        integer :: length
        if (status == GPUNN_OK) return
        call c_f_pointer(gpunn_error(dev), text, [768])
        length = 1
        do while (text(length) /= c_null_char)
            length = length + 1
        end do
        print *, text(:length - 1)
        stop 1
    end subroutine
end module

program sine
    use gpunn
    implicit none
    integer, parameter :: points = 256, unseen = 100
    real(c_double)     :: x(1, points), t(1, points), y(1, unseen), at(1, unseen)
    type(c_ptr)        :: dev, model, input, target, hidden, output, loss, adam
    integer            :: i

    x(1, :) = [(-3 + 6 * real(i, c_double) / points, i = 1, points)]
    t = sin(x)
    dev = gpunn_device_open(gpunn_device_args(seed=1))
    if (.not. c_associated(dev)) call check(c_null_ptr, -1)
    model = gpunn_model_create(dev, gpunn_model_args())
    input = gpunn_input(model, 'x' // c_null_char, GPUNN_F64, shape_of([GPUNN_BATCH, 1_c_int64_t]))
    target = gpunn_input(model, 't' // c_null_char, GPUNN_F64, shape_of([GPUNN_BATCH, 1_c_int64_t]))
    hidden = gpunn_tanh(gpunn_linear(input, 'fc1' // c_null_char, gpunn_linear_args(out_features=32)))
    output = gpunn_linear(hidden, 'fc2' // c_null_char, gpunn_linear_args(out_features=1))
    call check(dev, gpunn_set_dtype(output, GPUNN_F64))
    loss = gpunn_mse_loss(output, target, gpunn_loss_args())
    adam = gpunn_adam(model, gpunn_adam_args(lr=0.01))
    call check(dev, gpunn_write(input, x, int(8 * size(x), c_size_t)))
    call check(dev, gpunn_write(target, t, int(8 * size(t), c_size_t)))
    do i = 1, 1000
        call check(dev, gpunn_train_step(adam, loss, gpunn_train_step_args()))
    end do

    at(1, :) = [(-2.9 + 5.8 * real(i, c_double) / unseen, i = 1, unseen)]
    call check(dev, gpunn_write(input, at, int(8 * size(at), c_size_t)))
    call check(dev, gpunn_forward([output], 1))
    call check(dev, gpunn_read(output, y, int(8 * size(y), c_size_t)))
    print '(a, f8.5)', 'largest error', maxval(abs(y - sin(at)))
    call gpunn_optimizer_destroy(adam)
    call gpunn_model_destroy(model)
    call gpunn_device_close(dev)
end program
